use super::{Decided, Gate, Verdict};
use crate::Digest;
use concentric_core::{Str, ToolCall, ToolSpecs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The definitions of tools as somebody has seen and trusted them: a [`Gate`] that denies the calls
/// of those that are other now.
///
/// For tools whose definitions come from elsewhere, as of an MCP server, which may change what a
/// name means after it was trusted. Write the pins down where the definitions were reviewed, and
/// give them to each toolset.
///
/// ```
/// use concentric_core::ToolSource;
/// use concentric_tools::{NoArguments, Pins, Toolset, tool};
///
/// let tools = Toolset::new().tool(tool("now", "Tells the time.", |NoArguments {}| async { "noon" }));
/// let pins = Pins::of(&tools.specs());
/// assert!(pins.drifted(&tools.specs()).is_empty());
/// let tools = tools.gate(pins);
/// # let _ = tools;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pins(BTreeMap<Str, Digest>);

impl Pins {
    /// Pins the definitions of `specs`.
    pub fn of(specs: &ToolSpecs) -> Self {
        let pin = |spec: &std::sync::Arc<_>| digest(spec);
        Self(specs.iter().map(pin).collect())
    }

    /// The tools whose definitions are not as they were pinned. One that was not pinned is not
    /// among them.
    pub fn drifted(&self, specs: &ToolSpecs) -> Vec<Str> {
        let other = |spec: &&std::sync::Arc<concentric_core::ToolSpec>| {
            let (name, digest) = digest(spec);
            self.0.get(&name).is_some_and(|pinned| *pinned != digest)
        };
        let drifted = specs.iter().filter(other);
        drifted.map(|spec| spec.name.clone()).collect()
    }
}

fn digest(spec: &concentric_core::ToolSpec) -> (Str, Digest) {
    (spec.name.clone(), Digest::of_spec(spec))
}

impl Gate for Pins {
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
                tracing::warn!(tool = %call.name(), "a tool is other than it was pinned");
                Verdict::deny("The tool changed since it was trusted, so it was not run.").into()
            }
        }
    }
}
