//! Durable steps: the seam between a run and an engine that replays it.
//!
//! An engine of durable execution runs the code of a run again after a crash, and gives it the results
//! that it has recorded. Between two results the code must do the same each time: the loop does, since its
//! clock, its ids and its randomness come from the [`Environment`](crate::Environment) of the run. What may
//! differ is a *step*, whose result the engine's [`Journal`] records: a model call, a round of tool calls.
//!
//! The engine provides a [`JournalHandle`] in the run's context. `DurableLayer` and `DurableTools` of
//! `concentric-layers` pass the steps of a run to it; without a journal they have no effect, so that one
//! stack runs with an engine and without.
//!
//! ```
//! use concentric_core::{
//!     Context,
//!     durable::{Journal, JournalHandle, Recorded, StepAttempt, StepName, StepWork},
//!     service::BoxFuture,
//! };
//!
//! /// Executes each step, and records nothing.
//! struct Forgetful;
//!
//! impl Journal for Forgetful {
//!     fn step(&self, _: StepName, work: StepWork) -> BoxFuture<Recorded> {
//!         Box::pin(async move { Ok(work(StepAttempt::first()).await) })
//!     }
//! }
//!
//! let mut context = Context::new();
//! context.provide(JournalHandle::new(Forgetful));
//! ```

#[cfg(feature = "digest")]
mod environment;

#[cfg(feature = "digest")]
pub use self::environment::ReplayEnvironment;

use crate::{
    capability::Capability,
    context::Context,
    service::BoxFuture,
    slots::{SlotError, Slots},
};
use concentric_proto::{
    Error, ErrorKind, Phase, RunUsage, SideEffects, Str, run_state::StoredSlot,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

/// Records the results of a run's steps.
pub trait Journal: Send + Sync + 'static {
    /// Returns the result of the next step; calls `work` and records its result if there is none yet.
    ///
    /// The name need not be unique. Steps are requested one after another, in the same order each time.
    ///
    /// If the future is dropped, the run has left the step, and `work` is stopped. The work of a model call is polled
    /// once more then: it returns what the run has seen of the answer, which is recorded, since the run may leave
    /// because of it. A step that was left without a result has its place in the record, and does not resolve in a
    /// replay: the run leaves it again.
    ///
    /// # Errors
    ///
    /// The result cannot be recorded, or the time limit of the run or of the step has passed.
    fn step(&self, name: StepName, work: StepWork) -> BoxFuture<Recorded>;
}

/// The kind of a step, and the [index](Context::step) of the model call in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepName {
    /// A model call.
    Model(u32),
    /// The round of tool calls of an answer.
    Round(u32),
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(step) => write!(f, "model-{step}"),
            Self::Round(step) => write!(f, "round-{step}"),
        }
    }
}

/// The work of a step.
pub type StepWork =
    Box<dyn FnOnce(StepAttempt) -> Pin<Box<dyn Future<Output = Recorded> + Send>> + Send>;

/// An attempt at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepAttempt {
    /// Whether an earlier attempt may have executed the step, or a part of it, and has no recorded result.
    pub is_repeated: bool,
}

impl StepAttempt {
    /// The first attempt at a step.
    pub const fn first() -> Self {
        Self { is_repeated: false }
    }

    /// An attempt after one that may have executed the step.
    pub const fn repeated() -> Self {
        Self { is_repeated: true }
    }
}

/// The recorded result of a step, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recorded(Arc<RawValue>);

impl Recorded {
    /// Serializes the result of a step.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Other`]: the value cannot be serialized.
    pub fn from_serialize(result: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let json = serde_json::value::to_raw_value(result).map_err(|error| {
            Error::new(ErrorKind::Other, "the result of a step cannot be recorded")
                .with_source(error)
        })?;
        Ok(Self(json.into()))
    }

    /// Reads the result.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] with the code `unreadable_record`: the record is that of another step or of
    /// another version of the code.
    pub fn read<T>(&self) -> Result<T, Error>
    where
        T: DeserializeOwned,
    {
        serde_json::from_str(self.0.get()).map_err(|_| {
            let why = "the record of a step cannot be read; the code of the run has changed";
            Error::new(ErrorKind::Conflict, why).with_code("unreadable_record")
        })
    }

    /// The record without a result (`null`), which no step can read.
    pub fn none() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }

    /// The size of the JSON in bytes.
    pub fn size(&self) -> usize {
        self.0.get().len()
    }
}

/// The journal of a run, provided by the engine that drives it.
#[derive(Clone)]
pub struct JournalHandle(Arc<dyn Journal>);

impl JournalHandle {
    /// Creates a handle, which the engine [provides](Context::provide).
    pub fn new(journal: impl Journal) -> Self {
        Self(Arc::new(journal))
    }

    /// See [`Journal::step`].
    pub fn step(&self, name: StepName, work: StepWork) -> BoxFuture<Recorded> {
        self.0.step(name, work)
    }
}

impl Capability for JournalHandle {}

concentric_proto::opaque_debug!(JournalHandle);

/// An error as a journal records it: without the texts of providers, tools and libraries, which may contain
/// personal data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedError {
    kind: ErrorKind,
    message: Str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<Str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    #[serde(default)]
    effects: SideEffects,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<bool>,
    attempts: u32,
}

impl RecordedError {
    /// Converts the error of a step. Its message is kept only if it is one of this library: of a
    /// [halt](Error::halted) or of a configuration.
    pub fn new(error: &Error) -> Self {
        let kind = error.kind();
        Self {
            kind,
            message: match kind {
                ErrorKind::Halted | ErrorKind::Configuration => error.message().into(),
                _ => format!("a step of the run failed: {kind}").into(),
            },
            code: error.code().map(Str::from),
            phase: error.phase(),
            effects: error.effects(),
            status: error.status(),
            retry_after: error.retry_after(),
            advice: error.advice(),
            attempts: error.attempts(),
        }
    }

    /// The error, also of a replay.
    pub fn to_error(&self) -> Error {
        let mut error = Error::new(self.kind, self.message.clone())
            .with_effects(self.effects)
            .with_attempts(self.attempts);
        if let Some(code) = &self.code {
            error = error.with_code(code.clone());
        }
        if let Some(phase) = self.phase {
            error = error.with_phase(phase);
        }
        if let Some(status) = self.status {
            error = error.with_status(status);
        }
        if let Some(after) = self.retry_after {
            error = error.with_retry_after(after);
        }
        match self.advice {
            Some(advice) => error.with_advice(advice),
            None => error,
        }
    }
}

/// What a step has changed in its run, besides its result: durable [slots](crate::state) and recorded tokens.
///
/// Taken before the step; [`changes`](Self::changes) are recorded with the result, and
/// [applied](StepChanges::apply) when the step is replayed.
pub struct BeforeStep {
    context: Context,
    slots: Option<Vec<StoredSlot>>,
    usage: RunUsage,
}

/// The changes that a step has made to its run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepChanges {
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<StoredSlot>>,
    // The tokens of the run after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<RunUsage>,
}

impl BeforeStep {
    /// Notes the state of the run of `context` before a step.
    ///
    /// # Errors
    ///
    /// The value of a slot cannot be serialized.
    pub fn new(context: &Context) -> Result<Self, SlotError> {
        Ok(Self {
            slots: snapshot(context)?,
            usage: context.run_usage(),
            context: context.clone(),
        })
    }

    /// Returns what the step has changed.
    ///
    /// # Errors
    ///
    /// The value of a slot cannot be serialized.
    pub fn changes(&self) -> Result<StepChanges, SlotError> {
        let (slots, usage) = (snapshot(&self.context)?, self.context.run_usage());
        Ok(StepChanges {
            slots: slots.filter(|slots| Some(slots) != self.slots.as_ref()),
            usage: (usage != self.usage).then_some(usage),
        })
    }
}

impl StepChanges {
    /// Applies the changes to the run of `context`, whose step is not executed. `call` states whether the step
    /// was the model call of `context`.
    pub fn apply(self, context: &Context, call: bool) {
        if let Some(slots) = self.slots {
            context.run_slots().replace(slots);
        }
        if let Some(usage) = self.usage {
            context.replace_usage(usage);
            if call {
                context.mark_recorded_call();
            }
        }
    }
}

fn snapshot(context: &Context) -> Result<Option<Vec<StoredSlot>>, SlotError> {
    context.slots_of_run().map(Slots::snapshot).transpose()
}

impl fmt::Debug for BeforeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforeStep").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_error_has_no_foreign_text() {
        let error = Error::new(
            ErrorKind::Server,
            "the key sk-123 of ada@example.org is wrong",
        )
        .with_code("bad_key")
        .with_status(500)
        .with_effects(SideEffects::Possible)
        .with_retry_after(Duration::from_secs(3))
        .with_advice(false)
        .with_attempts(4)
        .with_phase(Phase::Model);
        let recorded = RecordedError::new(&error);
        let json = serde_json::to_string(&recorded).unwrap_or_default();
        assert!(!json.contains("sk-123"), "{json}");
        let read: RecordedError = serde_json::from_str(&json).unwrap_or_else(|_| recorded.clone());
        assert_eq!(read, recorded);
        let read = read.to_error();
        assert_eq!(
            (read.kind(), read.code(), read.status(), read.effects()),
            (error.kind(), error.code(), error.status(), error.effects())
        );
        assert_eq!(
            (read.retry_after(), read.advice(), read.attempts()),
            (error.retry_after(), error.advice(), error.attempts())
        );
    }

    #[test]
    fn a_halt_keeps_its_reason() {
        let recorded = RecordedError::new(&Error::halted("enough"));
        assert_eq!(recorded.to_error().message(), "enough");
    }

    #[test]
    fn a_record_of_another_type_is_an_error() {
        let recorded = Recorded::from_serialize("text");
        let read = recorded.and_then(|recorded| recorded.read::<RecordedError>());
        assert_eq!(
            read.err().as_ref().and_then(Error::code),
            Some("unreadable_record")
        );
    }
}
