//! Gates: what decides whether a tool call may run, before it enters the tool stack.
//!
//! A [`Gate`] is no layer: it decides about the calls of a round on their prepared arguments, and no
//! layer can remove or weaken what it says. All gates of a [`Toolset`](crate::Toolset) are asked
//! about all calls of a round before any of them runs; of several verdicts about a call the
//! strictest holds. [`Approval`](crate::Approval) is the gate that asks a person.
//!
//! ```
//! use concentric_tools::{Toolset, Verdict, gate_fn};
//!
//! let tools = Toolset::new().gate(gate_fn("office_hours", |call| match call.name().as_str() {
//!     "refund" => Verdict::deny("Refunds are paid by day."),
//!     _ => Verdict::Pass,
//! }));
//! # let _ = tools;
//! ```

mod pins;

pub use self::pins::Pins;

use crate::{ToolsetError, approval::Ask};
use concentric_core::{BoxError, Str, ToolCall, ToolSpecs};
use futures_util::future::join;
use std::{fmt, future::Future, pin::Pin};

/// Decides whether tool calls may run.
///
/// See the [module docs](self). A gate is asked again when a call is taken up after it waited, and
/// about arguments that were edited: what it answers depends on the call and on what it was made
/// with, and it changes nothing.
pub trait Gate: Send + Sync + 'static {
    /// What the gate is, and how it is configured: an approval holds for this, and not for another
    /// policy.
    fn policy(&self) -> Str;

    /// Decides about `call`, whose arguments are prepared.
    ///
    /// A gate that fails, or panics, denies the call.
    fn decide(&self, call: &ToolCall) -> Decided;

    /// Whether it goes by the rules that a run has of its own, as an
    /// [`Approval`](crate::Approval) in its context. If no gate does, those are a gate by themselves.
    fn knows_the_runs_own(&self) -> bool {
        false
    }

    /// Whether it can decide about calls of `tools`, which are those of its toolset: called by
    /// [`Toolset::check`](crate::Toolset::check), and before the first run. By default it can.
    ///
    /// # Errors
    ///
    /// It can't, as if it names a tool that is not there
    /// ([`ToolsetError::UnknownTool`]). Of a toolset that has agents among its tools, such a name is
    /// logged only: it may be that of a tool of theirs.
    fn check(&self, tools: &ToolSpecs) -> Result<(), ToolsetError> {
        let _ = tools;
        Ok(())
    }

    /// How it asks, if it does: who watches is told of the end of a question also when the gate
    /// would not ask it any more.
    fn asks(&self) -> Option<Ask> {
        None
    }
}

/// What a gate says of a call, now or later.
pub enum Decided {
    /// Now.
    Now(Verdict),
    /// When this resolves.
    Later(Pin<Box<dyn Future<Output = Result<Verdict, BoxError>> + Send>>),
}

impl Decided {
    /// Decides when `verdict` resolves. All gates and calls of a round are waited for side by side.
    pub fn later(
        verdict: impl Future<Output = Result<Verdict, BoxError>> + Send + 'static,
    ) -> Self {
        Self::Later(Box::pin(verdict))
    }

    /// The stricter of two verdicts; of two questions, this one's message.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Now(verdict), Self::Now(other)) => Self::Now(verdict.and(other)),
            (verdict, other) => Self::later(async move {
                let (verdict, other) = join(verdict.resolve(), other.resolve()).await;
                Ok(verdict?.and(other?))
            }),
        }
    }

    async fn resolve(self) -> Result<Verdict, BoxError> {
        match self {
            Self::Now(verdict) => Ok(verdict),
            Self::Later(verdict) => verdict.await,
        }
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

/// What a gate says of a call. The stricter of two holds, which is the later of this list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The call is not its business.
    Pass,
    /// It may run, with these arguments.
    Allow,
    /// Somebody is to be asked.
    Ask(Ask),
    /// It may not run; the model is told why.
    Deny(Str),
    /// It may not run, and neither may the other calls of the round: the run ends, for this reason.
    Halt(Str),
}

impl Verdict {
    /// Asks somebody.
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

    /// The stricter of two verdicts; what both ask is asked together.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ask(ask), Self::Ask(other)) => Self::Ask(ask.and(other)),
            (verdict, other) if other.strictness() > verdict.strictness() => other,
            (verdict, _) => verdict,
        }
    }

    /// The verdict's name, for logs.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Allow => "allow",
            Self::Ask(_) => "ask",
            Self::Deny(_) => "deny",
            Self::Halt(_) => "halt",
        }
    }
}

/// Makes a gate of a function.
///
/// `name` stands for what the function says: give it another when that changes, and approvals that
/// were asked for before are asked for again.
pub fn gate_fn<F>(name: impl Into<Str>, decide: F) -> GateFn<F>
where
    F: Fn(&ToolCall) -> Verdict + Send + Sync + 'static,
{
    GateFn {
        name: name.into(),
        decide,
    }
}

/// A [`Gate`] made by [`gate_fn`].
#[derive(Clone)]
pub struct GateFn<F> {
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

impl<F> fmt::Debug for GateFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GateFn").field(&self.name).finish()
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
