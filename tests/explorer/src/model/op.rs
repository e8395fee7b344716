//! The operations of the driver, the tools, the approvers and the storage.

use super::proto::{
    CallId, CancelReason, Error, ErrorKind, Event, FinishReason, Interrupt, InterruptId, MessageId,
    Reply, Suspension, ToolCallPart, ToolOutcome, ToolSpec, ToolSpecs, Usage,
    interrupt::{self, SuspendedBy},
    machine::{Input, ModelStart},
};
use crate::Kind;
use serde_json::json;
use std::sync::{Arc, LazyLock};

/// The calls of a round.
pub(super) const CALLS: usize = 3;

/// One step of the driver or of its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// The driver takes the next action; all of them, once the run has ended.
    Take,
    /// The driver announces the model call with this step's message.
    StepStarted(u8),
    ModelStarted(u8),
    Text,
    /// The model makes the call of this number.
    Call(u8, Kind),
    ModelFinish,
    ModelEnded,
    ModelFailed,
    /// A step gate asks, for the n-th time.
    GateAsk(u8),
    /// The driver takes the replies to a step gate.
    TakeAnswers,
    TakeBack,
    SkipRound,
    RoundRefused,
    /// The driver stores the run and calls the round service.
    Begin,
    /// The tool of the n-th call that was handed out begins.
    Start(u8),
    Settle(u8, How),
    /// The round service reports a call again that it has reported.
    Repeat(u8),
    /// The n-th call that was handed out waits, and asks the question of this number.
    Wait(u8, Why, u8),
    RoundEnded,
    RoundFailed,
    Finish,
    Continue,
    Reject,
    Halt,
    Cancel,
    Deadline,
    Failed,
    Dropped,
    /// The driver stores the run.
    Save,
    /// The process ends, and another one continues with the stored run.
    Crash,
    /// A process continues with the run that was suspended.
    Resume,
    /// The n-th question of the stored run is replied to.
    Reply(u8, Answer),
    /// Inputs that no longer matter.
    Late,
}

/// An outcome that the round service reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum How {
    Done,
    Failed,
    Halt,
    Denied,
    Cancelled,
    Unknown,
}

/// Why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// A gate asks whether it may run.
    Gate,
    /// The tool asks.
    Tool,
    /// Its outcome is unknown after a crash.
    Unknown,
    /// Others of its round wait.
    Held,
}

/// The reply of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Approve,
    Deny,
    Cancel,
    Result,
}

pub(super) const STOPS: [Op; 5] = [Op::Halt, Op::Cancel, Op::Deadline, Op::Failed, Op::Dropped];

impl Op {
    /// Whether it stops the run.
    pub(super) fn is_stop(self) -> bool {
        STOPS.contains(&self)
    }

    /// The input of the machine, if the operation is one.
    pub(super) fn input(self) -> Option<Input> {
        Some(match self {
            Self::StepStarted(step) => Input::StepStarted(message_id(step)),
            Self::ModelStarted(step) => Input::ModelStarted(start(step)),
            Self::Text => Input::ModelEvent(Event::text("well")),
            Self::Call(number, kind) => Input::ModelEvent(Event::tool_call(call(number, kind))),
            Self::ModelFinish => {
                Input::ModelEvent(Event::finish(FinishReason::Stop, Usage::new(1, 1)))
            }
            Self::ModelEnded => Input::ModelEnded,
            Self::ModelFailed => Input::ModelFailed(error("model")),
            Self::GateAsk(number) => {
                let asked = Interrupt::new(InterruptId::new(format!("g{number}")), "gate");
                Input::Ask(Box::new(Suspension::new(vec![asked])))
            }
            Self::TakeBack => Input::TakeBack,
            Self::SkipRound => Input::SkipRound("skipped".into()),
            Self::RoundRefused => Input::RoundRefused(error("refused")),
            Self::Settle(index, how) => Input::Settled {
                index: index.into(),
                outcome: how.outcome(),
            },
            Self::Wait(index, why, question) => {
                let (on, by) = why.suspension(question);
                Input::Suspended {
                    index: index.into(),
                    on: Box::new(on),
                    by,
                }
            }
            Self::RoundEnded => Input::RoundEnded,
            Self::RoundFailed => Input::RoundFailed(error("round")),
            Self::Finish => Input::Finish,
            Self::Continue => Input::Continue,
            Self::Reject => Input::Reject,
            Self::Halt => Input::Halt("halt".into()),
            Self::Cancel => Input::Cancel(CancelReason::User),
            Self::Deadline => Input::Deadline,
            Self::Failed => Input::Failed(error("failed")),
            Self::Dropped => Input::Dropped,
            Self::Take
            | Self::TakeAnswers
            | Self::Begin
            | Self::Start(_)
            | Self::Save
            | Self::Repeat(_)
            | Self::Crash
            | Self::Resume
            | Self::Reply(..)
            | Self::Late => return None,
        })
    }
}

impl How {
    pub(super) fn outcome(self) -> ToolOutcome {
        match self {
            Self::Done => ToolOutcome::done("done"),
            Self::Failed => ToolOutcome::failed("failed"),
            Self::Halt => ToolOutcome::done("last").and_halt("enough"),
            Self::Denied => ToolOutcome::denied("denied"),
            Self::Cancelled => ToolOutcome::cancelled("cancelled"),
            Self::Unknown => ToolOutcome::unknown("unknown"),
        }
    }
}

impl Why {
    fn suspension(self, question: u8) -> (Suspension, SuspendedBy) {
        let (reason, by) = match self {
            Self::Held => return (Suspension::held(), SuspendedBy::Gate),
            Self::Gate => (interrupt::TOOL_CALL, SuspendedBy::Gate),
            Self::Unknown => (interrupt::UNKNOWN_EFFECT, SuspendedBy::UnknownEffect),
            Self::Tool => ("choice".into(), SuspendedBy::Tool),
        };
        let asked = Interrupt::new(InterruptId::new(format!("q{question}")), reason);
        (Suspension::new(vec![asked]), by)
    }
}

impl Answer {
    /// The replies that a question may receive.
    pub(super) fn all(asked: &Interrupt) -> &'static [Self] {
        if asked.reason == interrupt::TOOL_CALL {
            &[Self::Approve, Self::Deny, Self::Cancel]
        } else if asked.reason == interrupt::UNKNOWN_EFFECT
            || asked.reason == interrupt::CLIENT_TOOL
        {
            &[Self::Result, Self::Cancel]
        } else {
            &[Self::Approve, Self::Cancel]
        }
    }

    pub(super) fn reply(self, to: InterruptId) -> Reply {
        match self {
            Self::Approve => Reply::approve(to),
            Self::Deny => Reply::deny(to, "no"),
            Self::Cancel => Reply::cancel(to),
            Self::Result => Reply::answer(to, "result"),
        }
    }

    /// What a reply that the machine delivers is.
    pub(super) fn read(reply: &Reply) -> Option<Self> {
        [Self::Approve, Self::Deny, Self::Cancel, Self::Result]
            .into_iter()
            .find(|answer| answer.reply(reply.interrupt_id.clone()) == *reply)
    }
}

/// The number of the question `id`, below 32: of a step gate, of the client's calls, of the others.
pub(super) fn question(id: &InterruptId) -> u8 {
    let (kind, number) = id.as_str().split_at(1);
    let number = number.rsplit(['/', 'c']).next().unwrap_or_default();
    let number: u8 = number.parse().unwrap_or_default();
    match kind {
        "g" => 24 + number,
        "m" => 16 + number,
        _ => number,
    }
}

/// The number of the call `id`.
pub(super) fn number(id: &CallId) -> usize {
    id.as_str()
        .trim_start_matches('c')
        .parse()
        .unwrap_or_default()
}

fn error(what: &'static str) -> Error {
    Error::new(ErrorKind::Server, what)
}

fn message_id(step: u8) -> MessageId {
    MessageId::new(format!("m{step}"))
}

fn call(number: u8, kind: Kind) -> ToolCallPart {
    let name = match kind {
        Kind::Effect => "pay",
        Kind::ReadOnly => "read",
        Kind::Client => "locate",
        Kind::Missing => "missing",
    };
    ToolCallPart::new(CallId::new(format!("c{number}")), name, "{}")
}

fn start(step: u8) -> ModelStart {
    static TOOLS: LazyLock<ToolSpecs> = LazyLock::new(|| {
        ToolSpecs::new(["pay", "read", "locate"].map(|name| {
            let mut spec = ToolSpec::new(name, "", json!({"type": "object"}));
            spec.annotations.read_only = name == "read";
            Arc::new(spec)
        }))
    });
    let mut start = ModelStart::new(message_id(step));
    start.tools = TOOLS.clone();
    start.client_tools = vec!["locate".into()].into();
    start
}
