//! The parts of a request that both APIs have.

use std::collections::{BTreeMap, HashSet};

use concentric_core::{ChatOptions, ChatRequest, Str, System, ThreadId};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{encode::Encode, failure::Failure, stored::Before};
use crate::policy::ClientPolicy;

/// The body of a request.
pub(super) trait Input: DeserializeOwned + Send {
    /// The name of the requested model.
    fn model(&self) -> Option<&str>;

    /// The id of the stored response that the request continues.
    fn previous(&self) -> Option<&str> {
        None
    }

    /// The ids of the items of stored responses that the request refers to.
    fn references(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Whether the response is stored, if there is a store.
    fn is_kept(&self) -> bool {
        false
    }

    /// Whether the run continues without its client.
    fn is_background(&self) -> bool {
        false
    }

    /// Checks and converts the request, which `before` precedes. `referenced` has the items of stored responses, by
    /// their ids.
    fn job(
        self,
        policy: &ClientPolicy,
        opening: Opening,
        before: Before,
        referenced: BTreeMap<Str, Box<RawValue>>,
    ) -> Result<Job, Failure>;
}

/// The identity of an answer.
pub(super) struct Opening {
    /// The id of the run.
    pub(super) run: Str,
    /// The id of the conversation.
    pub(super) thread: ThreadId,
    /// Whether the response is stored.
    pub(super) is_kept: bool,
    /// The name by which the client requested the model.
    pub(super) model: Str,
    /// In seconds since 1970.
    pub(super) created: u64,
    /// Whether the run continues without its client.
    pub(super) is_background: bool,
}

/// A checked request.
pub(super) struct Job {
    /// The request to the model, without its context.
    pub(super) request: ChatRequest,
    /// The ids of the calls of the conversation.
    pub(super) calls: HashSet<Str>,
    pub(super) is_streamed: bool,
    /// The conversation of the run, if it has one.
    pub(super) thread: Option<ThreadId>,
    /// The system text at the start of the conversation, without instructions.
    pub(super) system: System,
    pub(super) encoder: Box<dyn Encode>,
}

/// The parameters of sampling.
#[derive(Default)]
pub(super) struct Sampling {
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) frequency_penalty: Option<f64>,
    pub(super) presence_penalty: Option<f64>,
}

impl Sampling {
    pub(super) fn apply(self, options: &mut ChatOptions) -> Result<(), Failure> {
        options.temperature = number("temperature", self.temperature)?;
        options.top_p = number("top_p", self.top_p)?;
        options.frequency_penalty = number("frequency_penalty", self.frequency_penalty)?;
        options.presence_penalty = number("presence_penalty", self.presence_penalty)?;
        Ok(())
    }
}

fn number(field: &str, value: Option<f64>) -> Result<Option<f32>, Failure> {
    #[expect(clippy::cast_possible_truncation, reason = "checked below")]
    let value = value.map(|value| value as f32);
    match value {
        Some(value) if !value.is_finite() => Err(Failure::invalid(field, "number out of range")),
        value => Ok(value),
    }
}
