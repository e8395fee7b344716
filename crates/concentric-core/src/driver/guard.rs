//! Guards against panics of the parts that a driver calls.

use crate::panic::{CaughtPanic, catch};
use concentric_proto::{Error, ErrorKind, Phase};
use std::task::Poll;

/// A part of the stack with foreign code, which may panic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Foreign {
    Model,
    Tools,
    Store,
    Context,
}

/// Calls code of a part of the stack and converts a panic into an error. The text of the panic is
/// logged but not part of the error, which may be shown to clients.
// Inlined always: otherwise each event of a model's answer is moved through memory.
#[inline(always)]
pub(crate) fn attempt<T>(part: Foreign, work: impl FnOnce() -> T) -> Result<T, Error> {
    catch(work).map_err(|panic| panicked(part, &panic))
}

/// Polls a part of the stack: see [`attempt`].
#[inline(always)]
pub(super) fn guarded<T>(
    part: Foreign,
    poll: impl FnOnce() -> Poll<T>,
    fail: impl FnOnce(Error) -> T,
) -> Poll<T> {
    attempt(part, poll).unwrap_or_else(|error| Poll::Ready(fail(error)))
}

/// The item of a stream that panicked.
pub(super) const fn failed<T>(error: Error) -> Option<Result<T, Error>> {
    Some(Err(error))
}

#[cold]
fn panicked(part: Foreign, panic: &CaughtPanic) -> Error {
    let message = match part {
        Foreign::Model => "the model or a layer around it panicked",
        Foreign::Tools => "the tools or a layer around them panicked",
        Foreign::Store => "the store of the run's state panicked",
        Foreign::Context => "a gate of the run or a value in its context panicked",
    };
    // Not within the current span, into which its exporter would copy the text.
    tracing::error!(parent: None, panic = panic.text(), "{message}");
    Error::new(ErrorKind::Other, message)
}

/// Runs a drop, and logs a panic: the dropped value's run has ended.
pub(crate) fn discard(drops: impl FnOnce()) {
    if let Err(panic) = catch(drops) {
        tracing::error!(
            parent: None,
            panic = panic.text(),
            "a model or tool panicked while being dropped"
        );
    }
}

/// Sets the phase of `error` unless it has one.
pub(super) fn at(error: Error, phase: Phase) -> Error {
    match error.phase() {
        Some(_) => error,
        None => error.with_phase(phase),
    }
}
