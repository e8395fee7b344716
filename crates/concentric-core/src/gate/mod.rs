//! Gates, which decide whether a tool call may run before it enters the layers.
//!
//! A [`Gate`] is not a layer: it decides about the prepared arguments of the calls of a round, and
//! no layer can override the decision. All gates of a toolset decide about all calls of a round
//! before any of them runs; the strictest verdict about a call applies.
//!
//! ```
//! use concentric_core::gate::{Verdict, gate_fn};
//!
//! let office_hours = gate_fn("office_hours", |call| match call.name().as_str() {
//!     "refund" => Verdict::deny("Refunds are only paid during office hours."),
//!     _ => Verdict::Pass,
//! });
//! # let _ = office_hours;
//! ```

mod ask;

pub use self::ask::{ApprovalEvent, Ask};

use crate::tool_call::ToolCall;
use concentric_proto::{Str, ToolSpecs};
use std::{any::Any, fmt, future::Future, pin::Pin};
use tower::BoxError;

/// Decides whether tool calls may run.
///
/// See the [module docs](self). A gate decides again when a waiting call resumes, and about edited
/// arguments. Its decision must depend only on the call and the gate's configuration, and have no
/// side effects.
pub trait Gate: Any + Send + Sync {
    /// Identifies the gate and its configuration. An approval is valid only for the policy under
    /// which it was requested.
    fn policy(&self) -> Str;

    /// Decides about `call`, whose arguments are prepared.
    ///
    /// A gate that fails or panics denies the call.
    fn decide(&self, call: &ToolCall) -> Decided;

    /// Checks that the gate can decide about calls of `tools`, the tools of its toolset. Called
    /// when the toolset is checked, and before the first run. The default accepts all tools.
    ///
    /// # Errors
    ///
    /// Returns an error if the gate cannot decide, for example because a rule names an unknown
    /// tool.
    fn check(&self, tools: &ToolSpecs) -> Result<(), BoxError> {
        let _ = tools;
        Ok(())
    }
}

/// A gate's decision about a call, immediate or asynchronous.
pub enum Decided {
    /// Decided immediately.
    Now(Verdict),
    /// Decided when the future resolves.
    Later(Pin<Box<dyn Future<Output = Result<Verdict, BoxError>> + Send>>),
}

impl Decided {
    /// Decides when `verdict` resolves. The decisions about all calls of a round are awaited
    /// concurrently.
    pub fn later(
        verdict: impl Future<Output = Result<Verdict, BoxError>> + Send + 'static,
    ) -> Self {
        Self::Later(Box::pin(verdict))
    }
}

impl From<Verdict> for Decided {
    fn from(verdict: Verdict) -> Self {
        Self::Now(verdict)
    }
}

impl fmt::Debug for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(verdict) => f.debug_tuple("Now").field(verdict).finish(),
            Self::Later(_) => f.debug_tuple("Later").finish_non_exhaustive(),
        }
    }
}

/// A gate's verdict about a call. The variants are in order of strictness, the last one strictest.
// Exhaustive: a round service must not ignore a verdict.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The gate does not apply to the call.
    Pass,
    /// The call may run with its present arguments.
    Allow,
    /// The call requires an approval.
    Ask(Ask),
    /// The call may not run; the model receives the reason.
    Deny(Str),
    /// Neither the call nor the rest of the round may run: the run ends for this reason.
    Halt(Str),
}

impl Verdict {
    /// Requires an approval with default settings.
    pub fn ask() -> Self {
        Self::Ask(Ask::default())
    }

    /// Denies a call.
    pub fn deny(reason: impl Into<Str>) -> Self {
        Self::Deny(reason.into())
    }

    /// Ends the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    const fn strictness(&self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Allow => 1,
            Self::Ask(_) => 2,
            Self::Deny(_) => 3,
            Self::Halt(_) => 4,
        }
    }

    /// The stricter of two verdicts; two interrupts are combined into one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ask(ask), Self::Ask(other)) => Self::Ask(ask.and(other)),
            (verdict, other) if other.strictness() > verdict.strictness() => other,
            (verdict, _) => verdict,
        }
    }

    /// The verdict's name, for logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Allow => "allow",
            Self::Ask(_) => "ask",
            Self::Deny(_) => "deny",
            Self::Halt(_) => "halt",
        }
    }
}

/// Creates a gate from a function.
///
/// `name` identifies the behaviour of the function: change it when the behaviour changes, and
/// earlier approvals are requested again.
pub fn gate_fn<F>(name: impl Into<Str>, decide: F) -> impl Gate
where
    F: Fn(&ToolCall) -> Verdict + Send + Sync + 'static,
{
    GateFn {
        name: name.into(),
        decide,
    }
}

struct GateFn<F> {
    name: Str,
    decide: F,
}

impl<F> Gate for GateFn<F>
where
    F: Fn(&ToolCall) -> Verdict + Send + Sync + 'static,
{
    fn policy(&self) -> Str {
        self.name.clone()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        (self.decide)(call).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_of_two_verdicts_holds() {
        let all = || {
            [
                Verdict::Pass,
                Verdict::Allow,
                Verdict::ask(),
                Verdict::deny("no"),
                Verdict::halt("stop"),
            ]
        };
        for (i, a) in all().into_iter().enumerate() {
            for (j, b) in all().into_iter().enumerate() {
                let strictest = all()[i.max(j)].as_str();
                assert_eq!(a.clone().and(b).as_str(), strictest);
            }
        }
    }
}
