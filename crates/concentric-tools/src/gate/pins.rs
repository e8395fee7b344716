use super::{Decided, Gate, Verdict};
use crate::Digest;
use concentric_core::{Str, ToolCall, ToolSpecs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Digests of reviewed tool definitions: a [`Gate`] that denies calls of tools whose definitions
/// have changed.
///
/// Use it for tools with external definitions, such as those of an MCP server, which may change
/// after a review. Store the pins when the definitions are reviewed, and add them to each toolset.
///
/// ```
/// use concentric_core::ToolSource;
/// use concentric_tools::{NoArguments, ToolPins, Toolset, tool};
///
/// let tools = Toolset::new().tool(tool("now", "Returns the time.", |NoArguments {}| async { "noon" }));
/// let pins = ToolPins::of(&tools.specs());
/// assert!(pins.drifted(&tools.specs()).is_empty());
/// let tools = tools.gate(pins);
/// # let _ = tools;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolPins(BTreeMap<Str, Digest>);

impl ToolPins {
    /// Pins the definitions of `specs`.
    pub fn of(specs: &ToolSpecs) -> Self {
        let pin = |spec: &std::sync::Arc<_>| digest(spec);
        Self(specs.iter().map(pin).collect())
    }

    /// The tools whose definitions differ from the pinned ones. Tools without a pin are ignored.
    pub fn drifted(&self, specs: &ToolSpecs) -> Vec<Str> {
        let other = |spec: &&std::sync::Arc<concentric_core::ToolSpec>| {
            let (name, digest) = digest(spec);
            self.0.get(&name).is_some_and(|pinned| *pinned != digest)
        };
        let drifted = specs.iter().filter(other);
        drifted.map(|spec| spec.name.clone()).collect()
    }

    /// Whether the definition of `spec` is the pinned one. A tool without a pin does not match.
    pub fn matches(&self, spec: &concentric_core::ToolSpec) -> bool {
        let pinned = self.0.get(&spec.name);
        pinned.is_some_and(|pinned| *pinned == Digest::of_spec(spec))
    }
}

fn digest(spec: &concentric_core::ToolSpec) -> (Str, Digest) {
    (spec.name.clone(), Digest::of_spec(spec))
}

impl Gate for ToolPins {
    fn policy(&self) -> Str {
        Str::from_static("pins")
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        let Some(pinned) = self.0.get(call.name()) else {
            return Verdict::Pass.into();
        };
        match call.spec() {
            Some(spec) if Digest::of_spec(spec) == *pinned => Verdict::Pass.into(),
            _ => {
                tracing::warn!(tool = %call.name(), "the definition of a tool differs from its pin");
                Verdict::deny(
                    "The tool's definition changed after it was reviewed. The call was not run.",
                )
                .into()
            }
        }
    }
}
