use super::TokenCounter;
use concentric_core::{
    ChatRequest, ToolSpec, ToolSpecs, Turn, Usage,
    transcript::{json_size, text_size},
};
use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The assumed size of a token, and its bytes of plain text.
pub(crate) const BYTES: u64 = 4;

/// The models whose corrections are kept.
const MODELS: usize = 64;

/// Estimates tokens by the size of the content ([`Transcript::size`](concentric_core::Transcript::size)),
/// with four to a token, and corrects the estimate by the usage that providers report.
///
/// The correction of a model is the ratio of its reported input tokens to the estimate of the same
/// request, between 0.5 and 3. The first call sets it, and each later call counts as much as all before it. The
/// 64 models that were used last have one. Layers that limit requests report each answer's usage
/// ([`observe`](TokenCounter::observe)) to their counter, so one that is not shared with such a layer is
/// not corrected. A request states its model, but not its provider: requests that name no model have one
/// correction, so the models of two stacks need two estimators.
///
/// Clones share their corrections.
#[derive(Clone, Default)]
pub struct Estimator(Arc<Shared>);

#[derive(Default)]
struct Shared {
    // The tools of the last request, and their sizes: most requests have the same.
    tools: Mutex<Sizes>,
    // The model that was used last is the last.
    ratios: Mutex<Vec<Ratio>>,
}

/// Tools and their sizes.
type Sizes = Arc<[(Arc<ToolSpec>, u64)]>;

struct Ratio {
    model: Option<Box<str>>,
    ratio: f64,
}

impl Estimator {
    /// Creates an estimator without corrections.
    pub fn new() -> Self {
        Self::default()
    }

    fn ratios(&self) -> MutexGuard<'_, Vec<Ratio>> {
        let Self(shared) = self;
        shared.ratios.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of the tools.
    fn tools(&self, tools: &ToolSpecs) -> u64 {
        let Self(shared) = self;
        let known = || shared.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sizes = known().clone();
        let is_same = |((known, _), tool): (&(Arc<ToolSpec>, _), _)| Arc::ptr_eq(known, tool);
        if sizes.len() != tools.len() || !sizes.iter().zip(tools).all(is_same) {
            sizes = tools.iter().map(|it| (Arc::clone(it), tool(it))).collect();
            *known() = Arc::clone(&sizes);
        }
        sizes.iter().map(|(_, size)| size).sum()
    }

    /// Estimates the usage of a model call.
    #[cfg(any(feature = "budget", feature = "rate-limit"))]
    pub(crate) fn call(&self, request: &ChatRequest) -> Usage {
        let output = request.options.max_output_tokens.unwrap_or(0);
        // A text of less than a token is one.
        Usage::new(self.request(request).max(1), u64::from(output))
    }

    /// Estimates a model call with nothing but a conversation.
    #[cfg(feature = "budget")]
    pub(crate) fn turns(transcript: &concentric_core::Transcript) -> Usage {
        Usage::new(transcript.size() / BYTES, 0)
    }

    fn prompt_size(&self, request: &ChatRequest) -> u64 {
        let system = request
            .system
            .iter()
            .map(|segment| text_size(&segment.text));
        system.sum::<u64>() + self.tools(&request.tools)
    }
}

impl TokenCounter for Estimator {
    fn text(&self, text: &str) -> u64 {
        text_size(text) / BYTES
    }

    fn turn(&self, turn: &Turn) -> u64 {
        turn.size().div_ceil(BYTES)
    }

    fn prompt(&self, request: &ChatRequest) -> u64 {
        self.prompt_size(request) / BYTES
    }

    fn request(&self, request: &ChatRequest) -> u64 {
        // The transcript keeps its size.
        let size = self.prompt_size(request) + request.transcript.size();
        self.corrected(request.options.model.as_deref(), size / BYTES)
    }

    fn corrected(&self, model: Option<&str>, count: u64) -> u64 {
        let ratios = self.ratios();
        let ratio = ratios.iter().find(|it| it.model.as_deref() == model);
        ratio.map_or(count, |it| scaled(count, it.ratio))
    }

    fn observe(&self, model: Option<&str>, count: u64, usage: &Usage) {
        // An answer from a cache used none.
        let Some(reported) = usage.input_tokens().filter(|tokens| *tokens > 0) else {
            return;
        };
        if count == 0 {
            return;
        }
        let observed = (reported as f64 / count as f64).clamp(0.5, 3.0);
        let mut ratios = self.ratios();
        let known = ratios.iter().position(|it| it.model.as_deref() == model);
        let ratio = match known {
            Some(at) => {
                let mut known = ratios.remove(at);
                known.ratio = f64::midpoint(known.ratio, observed);
                known
            }
            None => {
                if ratios.len() >= MODELS {
                    ratios.remove(0);
                }
                Ratio {
                    model: model.map(Box::from),
                    ratio: observed,
                }
            }
        };
        ratios.push(ratio);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the factor is positive, and the cast saturates"
)]
pub(crate) fn scaled(count: u64, factor: f64) -> u64 {
    (count as f64 * factor).round() as u64
}

impl fmt::Debug for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimator").finish_non_exhaustive()
    }
}

fn tool(tool: &ToolSpec) -> u64 {
    let mut schema = Length(0);
    // `Length` never fails.
    let _ = write!(schema, "{}", tool.input_schema);
    text_size(&tool.name) + text_size(&tool.description) + schema.0
}

/// A writer that measures JSON.
struct Length(u64);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += json_size(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_tools_are_read_again() {
        let estimator = Estimator::new();
        let of = |descriptions: &[&str]| {
            let mut request = ChatRequest::user("four");
            for description in descriptions {
                let spec = ToolSpec::new("tool", *description, json!({}));
                request.tools.push(Arc::new(spec));
            }
            let first = estimator.request(&request);
            assert_eq!(estimator.request(&request), first);
            first
        };
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&["123456"]), 4);
        assert_eq!(of(&["1234567890"]), 5);
        assert_eq!(of(&["1234567890", "123456"]), 8);
        assert_eq!(of(&[]), 1);
    }
}
