use super::step::check_calls;
use crate::{
    Effects, Executor, FinishReason, HistoryError, Message, OpenRound, Refusal, Str, ToolCallPart,
    ToolOutcome, ToolSpecs, Transcript, Usage, transcript::OpenCall,
};
use serde::{Deserialize, Serialize};
use std::{error::Error as StdError, fmt};

/// The newest version of [`MachineState`].
const VERSION: u16 = 1;

/// The state of a run, as plain data that can be written down.
///
/// What it looks like inside may change with [`version`](Self::version); a newer library reads what
/// an older one wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    version: u16,
    pub(super) transcript: Transcript,
    // How many model calls were finished.
    pub(super) step: u32,
    pub(super) step_limit: u32,
    pub(super) usage: Usage,
    pub(super) effects: Effects,
    pub(super) reason: Option<FinishReason>,
    pub(super) provider_reason: Option<Str>,
    pub(super) stage: Stage,
}

impl MachineState {
    pub(super) fn new(transcript: Transcript, step_limit: u32) -> Self {
        Self {
            version: VERSION,
            transcript,
            step: 0,
            step_limit,
            usage: Usage::default(),
            effects: Effects::None,
            reason: None,
            provider_reason: None,
            stage: Stage::Model,
        }
    }

    pub(super) fn check(&self) -> Result<(), StateError> {
        if self.version != VERSION {
            return Err(StateError::Version(self.version));
        }
        match &self.stage {
            Stage::Round(round) => {
                check_calls(&round.message, &round.slots).map_err(StateError::Round)
            }
            _ => Ok(()),
        }
    }

    /// The version of the form it has.
    pub fn version(&self) -> u16 {
        self.version
    }
}

/// Why a run can't go on from a state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// It is of a version that this code does not know.
    Version(u16),
    /// Its open round contradicts itself.
    Round(HistoryError),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the state is of version {version}, and this code knows version {VERSION}"
            ),
            Self::Round(error) => write!(f, "the state's open round: {error}"),
        }
    }
}

impl StdError for StateError {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The model is to be called.
    Model,
    /// Tool calls are to be run, or wait.
    Round(Box<RoundState>),
    /// The run is over.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RoundState {
    pub(super) step: u32,
    pub(super) message: Message,
    pub(super) slots: Vec<Slot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) call: ToolCallPart,
    pub(super) refusal: Option<Refusal>,
    pub(super) read_only: bool,
    pub(super) state: SlotState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlotState {
    /// To be run.
    Ready,
    /// Waits for a decision, or for the client.
    Waiting,
    /// Handed out to be run.
    Running,
    /// Has its outcome.
    Settled(ToolOutcome),
}

impl Stage {
    pub(super) fn round(step: u32, message: Message, slots: Vec<Slot>) -> Self {
        Self::Round(Box::new(RoundState {
            step,
            message,
            slots,
        }))
    }

    pub(super) fn open(open: OpenRound, tools: &ToolSpecs) -> Self {
        let slots = open
            .calls
            .into_iter()
            .map(
                |OpenCall {
                     call,
                     outcome,
                     refusal,
                 }| {
                    let spec = tools.get(&call.name);
                    let gone =
                        || Refusal::NotOffered(tools.iter().map(|t| t.name.clone()).collect());
                    Slot {
                        read_only: spec.is_some_and(|spec| spec.annotations.read_only),
                        // A client answers for its own tools.
                        refusal: refusal.or_else(|| {
                            (spec.is_none() && call.executor == Executor::Loop).then(gone)
                        }),
                        call,
                        state: outcome.map_or(SlotState::Waiting, SlotState::Settled),
                    }
                },
            )
            .collect();
        Self::round(0, open.message, slots)
    }
}

impl RoundState {
    pub(super) fn into_open(self) -> OpenRound {
        OpenRound {
            message: self.message,
            calls: self
                .slots
                .into_iter()
                .map(|slot| OpenCall {
                    call: slot.call,
                    refusal: slot.refusal,
                    outcome: match slot.state {
                        SlotState::Settled(outcome) => Some(outcome),
                        _ => None,
                    },
                })
                .collect(),
        }
    }
}
