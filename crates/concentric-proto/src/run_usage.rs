use crate::{response_head::ResponseHead, text::Str, usage::Usage};
use serde::{Deserialize, Serialize};

/// The tokens used by all model calls of a run: those of its agent, of nested agents, of judges and
/// other layers, and of attempts that were rejected or repeated.
///
/// ```
/// use concentric_proto::{ResponseHead, RunUsage, Usage};
///
/// let mut run = RunUsage::default();
/// run.record(&ResponseHead::new("openai", "gpt-5.5"), Usage::new(100, 20));
/// run.record(&ResponseHead::new("anthropic", "claude-opus-4-8"), Usage::new(7, 1));
/// assert_eq!(run.total(), Usage::new(107, 21));
/// assert_eq!(run.models().len(), 2);
/// ```
///
/// Calls are summed by model, not by purpose, since the model that records a call does not know what it is for.
/// A sum has the counts that some call reported; those of calls that reported none are estimated
/// ([`ModelUsage::estimated`]) or absent. Prices, which change, are those of a catalogue (`concentric_providers`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunUsage(Vec<ModelUsage>);

/// The tokens used by calls of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelUsage {
    /// The provider, if it is known ([`ResponseHead::provider`]).
    pub provider: Option<Str>,
    /// The model, if it is known ([`ResponseHead::model`]).
    pub model: Option<Str>,
    /// The number of calls.
    pub calls: u64,
    /// The number of these calls whose tokens are estimated, because they failed or were dropped before the
    /// provider reported them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub estimated: u64,
    /// The sum of their tokens.
    pub usage: Usage,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "called by serde")]
const fn is_zero(calls: &u64) -> bool {
    *calls == 0
}

/// Calls with more input tokens are listed singly, because providers price long input differently.
const LONG_INPUT: u64 = 100_000;

impl ModelUsage {
    /// Whether this is the entry for all calls of the model that are not long.
    fn is_sum(&self) -> bool {
        self.calls > 1 || self.usage.input_tokens().unwrap_or(0) <= LONG_INPUT
    }
}

impl RunUsage {
    /// Adds the tokens of one call.
    pub fn record(&mut self, head: &ResponseHead, usage: Usage) {
        self.add(ModelUsage {
            provider: head.provider.clone(),
            model: head.model.clone(),
            calls: 1,
            estimated: 0,
            usage,
        });
    }

    /// Adds the estimated tokens of one call, which the provider did not report.
    pub fn record_estimate(&mut self, head: &ResponseHead, usage: Usage) {
        self.add(ModelUsage {
            provider: head.provider.clone(),
            model: head.model.clone(),
            calls: 1,
            estimated: 1,
            usage,
        });
    }

    /// Adds the tokens of other calls.
    ///
    /// ```
    /// use concentric_proto::{ResponseHead, RunUsage, Usage};
    ///
    /// let head = ResponseHead::new("openai", "gpt-5.5");
    /// let mut run = RunUsage::default();
    /// run.record(&head, Usage::new(100, 20));
    /// run.extend(run.clone());
    /// assert_eq!(run.total(), Usage::new(200, 40));
    /// assert_eq!(run.models()[0].calls, 2);
    /// ```
    pub fn extend(&mut self, other: Self) {
        for of in other.0 {
            self.add(of);
        }
    }

    fn add(&mut self, more: ModelUsage) {
        let sum = self.0.iter_mut().find(|of| {
            (&of.provider, &of.model) == (&more.provider, &more.model)
                && of.is_sum()
                && more.is_sum()
        });
        match sum {
            Some(of) => {
                of.calls = of.calls.saturating_add(more.calls);
                of.estimated = of.estimated.saturating_add(more.estimated);
                of.usage += more.usage;
            }
            None => self.0.push(more),
        }
    }

    /// The tokens by model. A model has one entry for its calls with at most 100,000 input tokens, and
    /// one for each longer call.
    pub fn models(&self) -> &[ModelUsage] {
        &self.0
    }

    /// The sum of all tokens.
    pub fn total(&self) -> Usage {
        let mut total = Usage::default();
        for model in &self.0 {
            total += model.usage;
        }
        total
    }
}
