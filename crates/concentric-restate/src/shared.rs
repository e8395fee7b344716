//! What the parts of a service share.

use crate::{events::RunEvents, live::LiveRuns};
use concentric_core::{BoxModel, Error, ErrorKind, Str};
use std::time::Duration;

/// What the handlers share.
pub(crate) struct Shared {
    pub(crate) agent: BoxModel,
    pub(crate) version: Str,
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
