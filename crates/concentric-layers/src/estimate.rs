//! The default estimate of the usage of a model call.

use concentric_core::{ChatRequest, ToolSpec, ToolSpecs, Transcript, Usage};
use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// The assumed number of bytes of text per token.
pub(crate) const BYTES: u64 = 4;

/// The default estimate. It keeps the sizes of the tools, most of which are those of the last call.
#[derive(Default)]
pub(crate) struct Rough {
    tools: Mutex<Sizes>,
}

/// Tools and their sizes in bytes.
type Sizes = Arc<[(Arc<ToolSpec>, u64)]>;

impl Rough {
    /// Estimates a model call.
    pub(crate) fn call(&self, request: &ChatRequest) -> Usage {
        let system = request.system.iter().map(|segment| length(&segment.text));
        let bytes = system.sum::<u64>() + self.tools(&request.tools) + request.transcript.size();
        let output = request.options.max_output_tokens.unwrap_or(0);
        Usage::new(bytes / BYTES, u64::from(output))
    }

    /// Estimates a model call with nothing but a conversation.
    #[cfg(feature = "budget")]
    pub(crate) fn turns(transcript: &Transcript) -> Usage {
        Usage::new(transcript.size() / BYTES, 0)
    }

    fn tools(&self, tools: &ToolSpecs) -> u64 {
        let known = || self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sizes = known().clone();
        let is_same = |((known, _), tool): (&(Arc<ToolSpec>, _), _)| Arc::ptr_eq(known, tool);
        if sizes.len() != tools.len() || !sizes.iter().zip(tools).all(is_same) {
            sizes = tools.iter().map(|it| (Arc::clone(it), tool(it))).collect();
            *known() = Arc::clone(&sizes);
        }
        sizes.iter().map(|(_, size)| size).sum()
    }
}

fn tool(tool: &ToolSpec) -> u64 {
    let mut schema = Length(0);
    // `Length` never fails.
    let _ = write!(schema, "{}", tool.input_schema);
    length(&tool.name) + length(&tool.description) + schema.0
}

pub(crate) const fn length(text: &str) -> u64 {
    text.len() as u64
}

/// A writer that counts bytes.
struct Length(u64);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += length(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_tools_are_read_again() {
        let rough = Rough::default();
        let of = |descriptions: &[&str]| {
            let mut request = ChatRequest::user("four");
            for description in descriptions {
                let spec = ToolSpec::new("tool", *description, json!({}));
                request.tools.push(Arc::new(spec));
            }
            let first = rough.call(&request);
            assert_eq!(rough.call(&request), first);
            first.input_tokens()
        };
        assert_eq!(of(&[]), Some(1));
        assert_eq!(of(&["123456"]), Some(4));
        assert_eq!(of(&["1234567890"]), Some(5));
        assert_eq!(of(&["1234567890", "123456"]), Some(8));
        assert_eq!(of(&[]), Some(1));
    }

    #[test]
    fn a_conversation_is_estimated_by_its_size() {
        let request = ChatRequest::user("eight by");
        #[cfg(feature = "budget")]
        assert_eq!(Rough::turns(&request.transcript), Usage::new(2, 0));
        assert_eq!(Rough::default().call(&request), Usage::new(2, 0));
    }
}
