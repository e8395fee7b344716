//! Events with their position in a run, for logs, queues and sockets that reconnect.
//!
//! An [`Event`] inside a run carries only its content. A consumer outside the run may also need to
//! know which run the event belongs to, whether an event is missing, and which events belong
//! together. An [`Envelope`] adds this information, and [`Envelopes`] adds it to the events of a
//! body.
//!
//! ```
//! use concentric_core::{ChatRequest, ChatResponse, Error, Event, FinishReason, Usage};
//! use concentric_layers::Envelopes;
//! use futures_util::StreamExt;
//! use tower::{ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! # let agent = service_fn(async |_: ChatRequest| {
//! #     Ok::<_, Error>(ChatResponse::new(futures_util::stream::iter([
//! #         Ok(Event::text("Hello!")),
//! #         Ok(Event::finish(FinishReason::Stop, Usage::new(9, 2))),
//! #     ])))
//! # });
//! let request = ChatRequest::user("hi");
//! let context = request.context.clone();
//! let mut body = Envelopes::new(agent.oneshot(request).await?.body, &context);
//! let mut at = 0;
//! while let Some(envelope) = body.next().await {
//!     let envelope = envelope?;
//!     assert_eq!((envelope.seq, &envelope.run_id), (at, context.run_id()));
//!     at += 1;
//! }
//! assert_eq!((at, body.next_seq()), (2, 2));
//! # Ok(())
//! # }
//! ```
//!
//! # Correlation
//!
//! | event | [`correlation_id`](Envelope::correlation_id) |
//! |---|---|
//! | part of a model's answer | the id of the message; the id of the run, if the message has none |
//! | part of a tool call: its start, deltas, the complete call, a custom event with its id, its result | `message id/position/call id` |
//! | part of a nested run | the id of the tool call that the nested run executes; [`inner`](Envelope::inner) contains the correlation id within the nested run |
//! | of the run itself: resumed, state, a custom event without a call, finish | the id of the run |
//!
//! All events of one tool call share an id that no other call has, in any run or for any provider.
//! The exception is a call that is repeated after an [`Event::Reset`]: it has the same id as in the
//! void answer. For a call that the loop executes, the id is the call's
//! [`idempotency_key`](Context::idempotency_key), provided that the model starts its calls in order
//! and that the provider executes none of them.
//!
//! # Several streams of one run
//!
//! An interrupted run continues in another body. [`Envelopes::starting_at`] continues the sequence
//! numbers, and [`Envelopes::with_open_round`] the correlation ids of calls: the round stores its
//! message id, so results have the ids that their calls had in the earlier stream, even in another
//! process. (This does not apply to a call whose id the model used twice.) Without the round, calls
//! are identified by `run id/call id`, which is constant within the stream. The calls of a resumed
//! nested run are identified this way.
//!
//! # Wire form
//!
//! In JSON, `thread_id`, `agent`, `step` and `inner` are omitted if they are absent:
//!
//! ```json
//! {
//!   "version": 1,
//!   "seq": 7,
//!   "run_id": "run_1",
//!   "thread_id": "thread_1",
//!   "agent": "clerk",
//!   "step": 0,
//!   "correlation_id": "msg_1/0/call_1",
//!   "event": {"tool_call_start": {"index": 0, "id": "call_1", "name": "search"}}
//! }
//! ```
//!
//! An envelope of another version is rejected. Adding a field does not change the version.

use concentric_core::{
    CallId, Context, Error, Event, Executor, InterruptId, MessageId, OpenRound, PartKind, Phase,
    RunId, Str, SubAgentEvent, ThreadId, ToolCallPart,
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    task::{self, Poll, ready},
};

/// The version of [`Envelope`]'s wire form.
const VERSION: u16 = 1;

/// An event with its position in a run.
///
/// See the [module docs](self) for the wire form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Envelope {
    /// The version of the wire form: 1.
    #[serde(deserialize_with = "known")]
    pub version: u16,
    /// The sequence number of the event in the run, starting at 0 and increasing by 1.
    pub seq: u64,
    /// The run whose stream contains the event.
    pub run_id: RunId,
    /// The conversation the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<ThreadId>,
    /// The run's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Str>,
    /// The step, from 0; `None` before the first step of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The id shared by all events that belong together; see the [module docs](self).
    pub correlation_id: Str,
    /// The correlation ids within nested runs, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<Str>,
    /// The event.
    pub event: Event,
}

fn known<'de, D>(deserializer: D) -> Result<u16, D::Error>
where
    D: Deserializer<'de>,
{
    match u16::deserialize(deserializer)? {
        VERSION => Ok(VERSION),
        other => Err(de::Error::custom(format_args!(
            "unsupported envelope version {other}, expected {VERSION}"
        ))),
    }
}

pin_project! {
    /// The events of a body, each in an [`Envelope`].
    ///
    /// An error is yielded unchanged as the last item and has no sequence number; the numbers
    /// before it are contiguous.
    ///
    /// The stream stores the calls of the open round and the nested runs.
    ///
    /// See the [module docs](self) for an example.
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct Envelopes<B> {
        #[pin]
        body: B,
        thread_id: Option<ThreadId>,
        agent: Option<Str>,
        next: u64,
        threads: Threads,
    }
}

impl<B> Envelopes<B> {
    /// Wraps the body of a run in `context`, or of a model call if the context is inside the loop.
    pub fn new(body: B, context: &Context) -> Self {
        let mut threads = Threads::new(context.run_id().clone());
        if context.phase() != Phase::Run {
            threads.step = Some(context.step());
            threads.message = context.message_id().cloned();
        }
        Self {
            body,
            thread_id: context.thread_id().cloned(),
            agent: context.agent().cloned(),
            next: 0,
            threads,
        }
    }

    /// Sets the sequence number of the first event; 0 by default. Use the
    /// [`next_seq`](Self::next_seq) of an earlier stream of the run.
    pub const fn starting_at(mut self, seq: u64) -> Self {
        self.next = seq;
        self
    }

    /// Sets the round that the run resumes, as returned by
    /// [`RunState::open_round`](concentric_core::machine::RunState::open_round) or
    /// [`Transcript::from_history`](concentric_core::Transcript::from_history).
    pub fn with_open_round(mut self, round: &OpenRound) -> Self {
        self.threads.take_up(round);
        self
    }

    /// Returns the sequence number of the next event.
    pub const fn next_seq(&self) -> u64 {
        self.next
    }

    /// Gets a reference to the body.
    pub const fn get_ref(&self) -> &B {
        &self.body
    }

    /// Consumes `self`, returning the body.
    pub fn into_inner(self) -> B {
        self.body
    }
}

impl<B> Stream for Envelopes<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Envelope, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let event = match ready!(this.body.poll_next(cx)) {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                this.threads.end();
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                this.threads.end();
                return Poll::Ready(None);
            }
        };
        let mut inner = Vec::new();
        let correlation_id = this.threads.of(&event, &mut inner);
        let seq = *this.next;
        *this.next = seq.saturating_add(1);
        Poll::Ready(Some(Ok(Envelope {
            version: VERSION,
            seq,
            run_id: this.threads.run.clone(),
            thread_id: this.thread_id.clone(),
            agent: this.agent.clone(),
            step: this.threads.step,
            correlation_id,
            inner,
            event,
        })))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.body.size_hint()
    }
}

/// The correlation state of one run.
#[derive(Debug)]
struct Threads {
    run: RunId,
    step: Option<u32>,
    message: Option<MessageId>,
    // The position of the message's next call, and the number of calls with results.
    position: usize,
    settled: usize,
    // Calls that the model is writing, in the order in which they began.
    begun: VecDeque<Begun>,
    // Calls of the round by their ids, and the number of calls without a result.
    calls: HashMap<CallId, Called>,
    open: usize,
    runs: HashMap<RunId, Within>,
}

#[derive(Debug)]
struct Begun {
    index: u32,
    id: CallId,
    key: Str,
}

#[derive(Debug)]
struct Called {
    key: Str,
    is_settled: bool,
}

/// A nested run.
#[derive(Debug)]
struct Within {
    // The correlation id of the call that the run executes.
    key: Str,
    threads: Threads,
}

impl Threads {
    fn new(run: RunId) -> Self {
        Self {
            run,
            step: None,
            message: None,
            position: 0,
            settled: 0,
            begun: VecDeque::new(),
            calls: HashMap::new(),
            open: 0,
            runs: HashMap::new(),
        }
    }

    fn take_up(&mut self, round: &OpenRound) {
        let message = round.message().id.clone();
        for (position, (call, _)) in round.calls().enumerate() {
            let key = self.key_at(message.as_ref(), position, &call.id);
            self.open_call(&call.id, key);
        }
        self.position = round.calls().len();
        self.message = message;
    }

    /// Clears the current message and its round.
    fn end(&mut self) {
        self.position = 0;
        self.settled = 0;
        self.begun = VecDeque::new();
        self.calls = HashMap::new();
        self.open = 0;
        self.runs = HashMap::new();
    }

    /// Returns the correlation id of `event`, and adds those within nested runs to `inner`.
    fn of(&mut self, event: &Event, inner: &mut Vec<Str>) -> Str {
        match event {
            Event::StepStart(start) => {
                self.end();
                self.step = Some(start.step);
                self.message = Some(start.message_id.clone());
                self.of_message()
            }
            Event::ToolCallStart(start) => self.begin(start.index, &start.id),
            Event::ToolCallDelta(delta) => {
                let begun = self.begun.iter().rfind(|begun| begun.index == delta.index);
                begun.map_or_else(|| self.of_message(), |begun| begun.key.clone())
            }
            Event::ToolCall(call) => self.call(&call.call),
            Event::ToolResult(result) => self.settle(&result.call_id),
            Event::Part(part) => match &part.kind {
                PartKind::ToolCall(call) => self.call(call),
                PartKind::ToolResult(result) => self.settle(&result.call_id),
                _ => self.of_message(),
            },
            Event::Custom(custom) => match &custom.call_id {
                Some(id) => self.of_call(id),
                None => self.of_run(),
            },
            Event::SubAgent(event) => self.of_sub_agent(event, inner),
            Event::State(_) | Event::Resumed | Event::TranscriptReplaced(_) => self.of_run(),
            Event::Reset => {
                self.begun.clear();
                self.calls.retain(|_, call| call.is_settled);
                self.open = 0;
                self.position = self.settled;
                self.of_message()
            }
            Event::Finish(_) => {
                self.end();
                self.of_run()
            }
            Event::StepFinish(_) => {
                self.begun.clear();
                self.of_message()
            }
            // Text and other parts of the current message.
            _ => self.of_message(),
        }
    }

    fn of_run(&self) -> Str {
        self.run.clone().into()
    }

    fn of_message(&self) -> Str {
        let message = self.message.clone();
        message.map_or_else(|| self.of_run(), Str::from)
    }

    // ---- calls ----

    fn key_at(&self, message: Option<&MessageId>, position: usize, id: &CallId) -> Str {
        match (message, self.step.unwrap_or_default()) {
            // The same format as `Context::idempotency_key`.
            (Some(_), _) => InterruptId::for_call(message, position, id).into(),
            (None, step) => format!("{}/{step}/{position}/{id}", self.run).into(),
        }
    }

    fn next_key(&mut self, id: &CallId) -> Str {
        let position = self.position;
        self.position += 1;
        self.key_at(self.message.as_ref(), position, id)
    }

    fn begin(&mut self, index: u32, id: &CallId) -> Str {
        let key = self.next_key(id);
        let begun = Begun {
            index,
            id: id.clone(),
            key: key.clone(),
        };
        self.begun.push_back(begun);
        key
    }

    fn call(&mut self, call: &ToolCallPart) -> Str {
        let key = match self.take_begun(&call.id) {
            Some(key) => key,
            // The call is not part of the round.
            None if call.executor == Executor::Provider => {
                format!("{}/-/{}", self.of_message(), call.id).into()
            }
            None => self.next_key(&call.id),
        };
        // An agent in the model's position makes several rounds in one message.
        if self.open == 0 {
            self.calls.clear();
        }
        self.open_call(&call.id, key.clone());
        key
    }

    fn open_call(&mut self, id: &CallId, key: Str) {
        let is_settled = false;
        let before = self.calls.insert(id.clone(), Called { key, is_settled });
        if before.is_none_or(|call| call.is_settled) {
            self.open += 1;
        }
    }

    /// Returns the key of a complete call that had begun.
    fn take_begun(&mut self, id: &CallId) -> Option<Str> {
        let mut begun = self.begun.iter();
        let at = begun.position(|begun| begun.id == *id).or_else(|| {
            // The loop renames a call whose id is already used.
            let (said, _) = id.as_str().rsplit_once('~')?;
            let mut begun = self.begun.iter();
            begun.position(|begun| begun.id.as_str() == said)
        })?;
        self.begun.remove(at).map(|begun| begun.key)
    }

    fn of_call(&self, id: &CallId) -> Str {
        if let Some(call) = self.calls.get(id) {
            return call.key.clone();
        }
        match self.begun.iter().rfind(|begun| begun.id == *id) {
            Some(begun) => begun.key.clone(),
            None => format!("{}/{id}", self.run).into(),
        }
    }

    fn settle(&mut self, id: &CallId) -> Str {
        let key = self.of_call(id);
        if let Some(call) = self.calls.get_mut(id)
            && !call.is_settled
        {
            call.is_settled = true;
            self.open -= 1;
            self.settled += 1;
        }
        self.runs.retain(|_, run| run.key != key);
        key
    }

    // ---- nested runs ----

    fn of_sub_agent(&mut self, event: &SubAgentEvent, inner: &mut Vec<Str>) -> Str {
        let key = match &event.call_id {
            Some(id) => self.of_call(id),
            None => self.of_run(),
        };
        let within = self.runs.entry(event.run_id.clone());
        let within = within.or_insert_with(|| Within {
            key: key.clone(),
            threads: Self::new(event.run_id.clone()),
        });
        let at = inner.len();
        let correlation = within.threads.of(&event.event, inner);
        inner.insert(at, correlation);
        if event.event.is_finish() {
            self.runs.remove(&event.run_id);
        }
        key
    }
}
