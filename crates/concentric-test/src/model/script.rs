use crate::{Gate, Pace};
use concentric_core::{
    ChatRequest, Error, ErrorKind, Event, Finish, FinishReason, ResponseHead, Usage,
};
use std::{collections::VecDeque, time::Duration};

/// One step of a response.
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

/// One response, as the builder methods have defined it so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    pub(super) ops: VecDeque<Op>,
    pub(super) head: ResponseHead,
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

    /// Returns the response, with a finish if it has no other end.
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

/// The state that all clones of a model share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) scripts: VecDeque<Script>,
    // Whether the next builder method begins a response.
    pub(super) begin: bool,
    pub(super) repeat: bool,
    pub(super) pace: Pace,
    pub(super) unready: Option<Error>,
    // Numbers the tool calls without an explicit id.
    pub(super) next_call: usize,
    pub(super) requests: Vec<ChatRequest>,
    pub(super) counts: Counts,
}

/// Counts of calls and polls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) live: usize,
    pub(super) most_live: usize,
    pub(super) dropped: usize,
    pub(super) polls: usize,
    pub(super) items: usize,
}

impl Shared {
    /// The response that builder methods add to.
    pub(super) fn current(&mut self) -> &mut Script {
        if std::mem::take(&mut self.begin) || self.scripts.is_empty() {
            self.scripts.push_back(Script::new());
        }
        self.scripts.back_mut().expect("one was just put there")
    }

    /// The response to the next call.
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
                format!(
                    "the script has no response for call {}",
                    self.requests.len()
                ),
            )
        })
    }
}
