use super::script::{Op, Script, Shared};
use crate::Pace;
use concentric_core::{Context as RunContext, Error, ErrorKind, Event, ResponseHead, Usage};
use futures_util::Stream;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

/// Response body for [`ScriptedModel`](super::ScriptedModel).
#[must_use = "streams do nothing unless polled"]
pub struct ScriptedBody {
    // Events that were read before the future resolved.
    ready: VecDeque<Event>,
    ops: VecDeque<Op>,
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    context: RunContext,
    head: ResponseHead,
    usage: Usage,
    pace: Pace,
    // Whether the pace has been applied to the next item.
    passed: bool,
    ended: bool,
    life: Life,
}

/// Counts a call as live while its future or its body exists.
struct Life {
    shared: Arc<Mutex<Shared>>,
    ended: bool,
}

impl Life {
    fn count(&self, set: impl FnOnce(&mut super::script::Counts)) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        set(&mut shared.counts);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let dropped = usize::from(!self.ended);
        self.count(|counts| {
            counts.live -= 1;
            counts.dropped += dropped;
        });
    }
}

impl ScriptedBody {
    pub(super) fn new(script: Script, context: RunContext, shared: Arc<Mutex<Shared>>) -> Self {
        let life = Life {
            shared,
            ended: false,
        };
        life.count(|counts| {
            counts.live += 1;
            counts.most_live = counts.most_live.max(counts.live);
        });
        Self {
            ready: VecDeque::new(),
            ops: script.ops,
            wait: None,
            context,
            head: script.head,
            usage: script.usage,
            pace: script.pace,
            passed: false,
            ended: false,
            life,
        }
    }

    /// Resolves when the first content is ready, or the finish if `whole`.
    pub(super) fn poll_commit(
        &mut self,
        cx: &mut Context<'_>,
        whole: bool,
    ) -> Poll<Result<(), Error>> {
        loop {
            match ready!(self.poll_op(cx)) {
                Some(Ok(event)) => {
                    let enough = if whole {
                        event.is_finish()
                    } else {
                        event.is_content()
                    };
                    self.ready.push_back(event);
                    if enough {
                        return Poll::Ready(Ok(()));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => {
                    return Poll::Ready(Err(Error::new(
                        ErrorKind::Truncated,
                        "the response ended before its terminal event",
                    )));
                }
            }
        }
    }

    fn poll_op(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let is_item = matches!(self.ops.front(), Some(Op::Event(_) | Op::Fail(_)));
            if is_item && self.pace != Pace::AtOnce && !std::mem::replace(&mut self.passed, true) {
                let (pace, context) = (self.pace, self.context.clone());
                self.wait = Some(Box::pin(async move { pace.pass(&context).await }));
                continue;
            }
            self.passed = false;
            match self.ops.pop_front() {
                Some(Op::Event(event)) => {
                    if let Event::Finish(finish) = &event
                        && self.head.model.is_some()
                    {
                        self.context.record_usage(&self.head, finish.usage);
                    }
                    self.end(event.is_finish());
                    return Poll::Ready(Some(Ok(event)));
                }
                Some(Op::Fail(error)) => {
                    self.fail();
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Op::EndEarly) | None => self.fail(),
                Some(Op::Never) => self.wait = Some(Box::pin(std::future::pending())),
                Some(Op::Wait(gate)) => {
                    self.wait = Some(Box::pin(async move { gate.pass().await }));
                }
                Some(Op::Sleep(duration)) => {
                    self.wait = Some(self.context.environment().clock().sleep(duration));
                }
                Some(Op::Yield) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    fn end(&mut self, ended: bool) {
        self.ended |= ended;
        self.life.ended |= ended;
    }

    fn fail(&mut self) {
        self.record_estimate();
        self.end(true);
    }

    /// Records the tokens of a response that is not complete.
    fn record_estimate(&self) {
        if self.head.model.is_some() {
            self.context.record_estimated_usage(&self.head, self.usage);
        }
    }
}

impl Drop for ScriptedBody {
    fn drop(&mut self) {
        if !self.life.ended {
            self.record_estimate();
        }
    }
}

impl Stream for ScriptedBody {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.life.count(|counts| counts.polls += 1);
        let item = match self.ready.pop_front() {
            Some(event) => Some(Ok(event)),
            None => ready!(self.poll_op(cx)),
        };
        self.life.count(|counts| counts.items += 1);
        Poll::Ready(item)
    }

    /// Returns an exact hint for the items that the script has left.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let mut items = self.ready.len();
        if !self.ended {
            for op in &self.ops {
                match op {
                    Op::Event(event) => {
                        items += 1;
                        if event.is_finish() {
                            break;
                        }
                    }
                    Op::Fail(_) => {
                        items += 1;
                        break;
                    }
                    Op::EndEarly | Op::Never => break,
                    Op::Wait(_) | Op::Sleep(_) | Op::Yield => {}
                }
            }
        }
        (items, Some(items))
    }
}

impl fmt::Debug for ScriptedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedBody")
            .field("ready", &self.ready)
            .field("ops", &self.ops)
            .finish_non_exhaustive()
    }
}
