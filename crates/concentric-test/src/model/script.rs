use crate::{Gate, Pace};
use concentric_core::{ChatRequest, Error, ErrorKind, Event, Finish, FinishReason, Head, Usage};
use std::{collections::VecDeque, time::Duration};

/// One thing that an answer does.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Event(Event),
    Fail(Error),
    EndEarly,
    Never,
    Wait(Gate),
    Sleep(Duration),
    Yield,
}

/// One answer, as it is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    pub(super) ops: VecDeque<Op>,
    pub(super) head: Head,
    pub(super) usage: Usage,
    pub(super) unary: bool,
    pub(super) pace: Pace,
    calls: bool,
}

impl Script {
    pub(super) fn new() -> Self {
        Self {
            usage: Usage::new(1, 1),
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, op: Op) {
        if let Op::Event(Event::ToolCall(event)) = &op {
            self.calls |= event.call.executor == concentric_core::Executor::Loop;
        }
        self.ops.push_back(op);
    }

    fn is_ended(&self) -> bool {
        self.ops.iter().any(|op| {
            matches!(
                op,
                Op::Event(Event::Finish(_)) | Op::Fail(_) | Op::EndEarly | Op::Never
            )
        })
    }

    /// The answer with its end.
    pub(super) fn whole(mut self) -> Self {
        if !self.is_ended() {
            let reason = if self.calls {
                FinishReason::ToolCalls
            } else {
                FinishReason::Stop
            };
            let finish = Finish::new(reason, self.usage);
            self.push(Op::Event(Event::Finish(Box::new(finish))));
        }
        self
    }
}

/// What all clones of a model share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) scripts: VecDeque<Script>,
    // Whether the next thing written begins an answer.
    pub(super) begin: bool,
    pub(super) repeat: bool,
    pub(super) pace: Pace,
    pub(super) unready: Option<Error>,
    // Numbers the tool calls that are not given an id.
    pub(super) next_call: usize,
    pub(super) requests: Vec<ChatRequest>,
    pub(super) counts: Counts,
}

/// What has become of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) live: usize,
    pub(super) most_live: usize,
    pub(super) dropped: usize,
    pub(super) polls: usize,
    pub(super) items: usize,
}

impl Shared {
    /// The answer that is being written.
    pub(super) fn current(&mut self) -> &mut Script {
        if std::mem::take(&mut self.begin) || self.scripts.is_empty() {
            self.scripts.push_back(Script::new());
        }
        self.scripts.back_mut().expect("one was just put there")
    }

    /// The answer to the next call.
    pub(super) fn next(&mut self) -> Result<Script, Error> {
        let script = if self.repeat && self.scripts.len() == 1 {
            self.scripts.front().cloned()
        } else {
            self.scripts.pop_front()
        };
        let pace = self.pace;
        let whole = |script: Script| Script {
            pace,
            ..script.whole()
        };
        script.map(whole).ok_or_else(|| {
            Error::new(
                ErrorKind::Other,
                format!("the script has no answer for call {}", self.requests.len()),
            )
        })
    }
}
