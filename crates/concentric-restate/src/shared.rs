//! What the parts of a service share.

use crate::{events::RunEvents, live::LiveRuns};
use concentric_core::{BoxModel, Error, ErrorKind, Str};
use std::time::Duration;

/// Where a run waits for replies.
///
/// ```
/// use concentric_core::BoxModel;
/// use concentric_restate::{RestateAgents, Waits};
///
/// fn agents(agent: BoxModel) -> RestateAgents {
///     RestateAgents::new("Clerk", agent).waits(Waits::Await)
/// }
/// # let _ = agents;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waits {
    /// In the state of its object: the invocation ends with [`Outcome::Interrupted`], and a reply is a new one.
    ///
    /// [`Outcome::Interrupted`]: concentric_core::Outcome::Interrupted
    #[default]
    Return,
    /// In its invocation, which awaits an awakeable of Restate: for callers that need one invocation from the start to
    /// the end of a run, and for short waits, since the invocation is bound to the deployment that it began on. After
    /// the inactivity timeout it suspends, and needs no process.
    ///
    /// The next run of the conversation begins when the waiting one has ended. [Cancelling] the run ends the wait, and
    /// so does the expiry of the last of its interrupts: the run is [aborted], and the conversation is as before the
    /// round that waited.
    ///
    /// [Cancelling]: crate::RestateClient::cancel
    /// [aborted]: concentric_core::Outcome::Aborted
    Await,
}

impl Waits {
    /// The name in the version of the code.
    pub(crate) const fn name(self) -> &'static [u8] {
        match self {
            Self::Return => b"return",
            Self::Await => b"await",
        }
    }
}

/// What the handlers share.
pub(crate) struct Shared {
    pub(crate) agent: BoxModel,
    pub(crate) version: Str,
    pub(crate) waits: Waits,
    pub(crate) limits: Limits,
    pub(crate) live: LiveRuns,
    pub(crate) events: RunEvents,
}

/// The options of the object that Restate is told.
pub(crate) struct Timeouts {
    pub(crate) inactivity: Duration,
    pub(crate) abort: Duration,
    pub(crate) max_attempts: Option<u64>,
    pub(crate) retention: Duration,
}

/// The time limits of an invocation and of its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) deadline: Duration,
    pub(crate) step: Duration,
}

pub(crate) fn configuration(why: String) -> Error {
    Error::new(ErrorKind::Configuration, why)
}
