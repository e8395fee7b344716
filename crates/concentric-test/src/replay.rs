//! The check that a run does the same in a replay.

use concentric_core::{
    ChatRequest, Context, Error, ErrorKind, Event, Finish, RunId, Str, ThreadId,
    durable::{
        Journal, JournalHandle, Recorded, ReplayEnvironment, StepAttempt, StepName, StepWork,
    },
    service::{BoxFuture, SharedModel},
    trace::{Trace, TraceEntry, TraceStep},
};
use futures_util::{FutureExt, StreamExt, future::Fuse};
use std::{
    fmt::Debug,
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, ready},
    time::{Duration, SystemTime},
};
use tower::ServiceExt;

/// The number of replays: a choice between two equal chances is repeated in all of them with a probability of 2^-16.
const REPLAYS: usize = 16;

/// Checks that a stack does the same when an engine of durable execution replays its run.
///
/// An engine, such as Restate, executes the code of a run again after a crash, with the
/// [results that its journal has](concentric_core::durable). What runs outside of the steps, between them, must do the
/// same each time. This check finds layers, gates and hooks that do not, because they depend on the system's time,
/// on random numbers, on the order of a map, or on what an earlier run has left in the process.
///
/// `agent` creates the stack anew, as each process does, with its model and its tools; `request` creates the request,
/// whose context is replaced. The stack has `DurableLayer` and `DurableTools` of `concentric-layers`, as it is deployed.
/// The run is made once, with a journal that records its steps, and 16 times from this record, with the clock, the
/// ids and the random numbers of [`ReplayEnvironment`]. Each replay
///
/// - requests the same steps in the same order, and none besides them: neither the model nor a tool is called;
/// - decides the same: model calls, rounds, results, step gates;
/// - yields the same events, except those that only a step can emit: [`Event::Custom`], [`Event::State`] and
///   [`Event::SubAgent`] are compared among the replays;
/// - ends the same: outcome, transcript, usage, and the state of a run that is interrupted; or the same error.
///
/// What a layer changes in a request of a model only is not compared: the record of a step has its result. A value
/// that rarely changes, such as the hour, is not found.
///
/// ```
/// use concentric_core::{AgentLayer, ChatRequest};
/// use concentric_layers::{durable::{DurableLayer, DurableTools}, inspect_events};
/// use concentric_test::{ScriptedModel, ScriptedTools, check_replay};
/// use serde_json::json;
/// use tower::ServiceBuilder;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let agent = || {
///     let model = ScriptedModel::new().tool_call("search", json!({})).then().text("42");
///     let tools = ScriptedTools::new().answers("search", "found");
///     ServiceBuilder::new()
///         .layer(inspect_events(|event| println!("{event:?}"))) // the layer to check
///         .layer(AgentLayer::new(DurableTools::new(tools)))
///         .layer(DurableLayer::new())
///         .service(model)
/// };
/// check_replay(agent, || ChatRequest::user("What is it?")).await;
/// # }
/// ```
///
/// The check needs a tokio runtime with a timer.
///
/// # Panics
///
/// Panics if the run has no step, or if a replay differs; the message names the first difference.
pub async fn check_replay<S>(agent: impl Fn() -> S, request: impl Fn() -> ChatRequest)
where
    S: SharedModel,
{
    let journal = Record::default();
    let first = Seen::of(agent(), request(), journal.begin(false)).await;
    assert!(
        !first.steps.is_empty(),
        "the run has no step: the stack has no `DurableLayer` around its model"
    );
    let mut replays = Vec::new();
    for at in 1..=REPLAYS {
        let replay = Seen::of(agent(), request(), journal.begin(true)).await;
        let in_replay = format!("in replay {at}");
        same(&in_replay, "step", &first.steps, &replay.steps);
        same(&in_replay, "decision", &first.decisions, &replay.decisions);
        let lasting = [lasting(&first.events), lasting(&replay.events)];
        same(&in_replay, "event", &lasting[0], &lasting[1]);
        assert!(
            first.end == replay.end,
            "{in_replay}, the end of the run is {:?}; it was {:?}",
            replay.end,
            first.end
        );
        replays.push(replay);
    }
    for pair in replays.windows(2) {
        if let [one, next] = pair {
            same("in a replay", "event", &one.events, &next.events);
        }
    }
}

#[track_caller]
fn same<T>(place: &str, what: &str, first: &[T], replay: &[T])
where
    T: PartialEq + Debug,
{
    for at in 0..first.len().max(replay.len()) {
        let (was, is) = (first.get(at), replay.get(at));
        assert!(was == is, "{place}, {what} {at} is {is:?}; it was {was:?}");
    }
}

/// The events that a replay has, too.
fn lasting(events: &[Event]) -> Vec<&Event> {
    let made_by_steps = |event: &&Event| {
        matches!(
            event,
            Event::Custom(_) | Event::State(_) | Event::SubAgent(_)
        )
    };
    events.iter().filter(|it| !made_by_steps(it)).collect()
}

/// What a run did outside of its steps.
struct Seen {
    steps: Vec<Str>,
    decisions: Vec<TraceStep>,
    events: Vec<Event>,
    end: End,
}

#[derive(Debug, PartialEq)]
enum End {
    Finished(Box<Finish>),
    Failed(ErrorKind, Option<String>, String),
    Truncated,
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        let code = error.code().map(str::to_owned);
        Self::Failed(error.kind(), code, error.message().to_owned())
    }
}

impl Seen {
    async fn of(agent: impl SharedModel, request: ChatRequest, journal: Attempt) -> Self {
        let mut context = Context::builder()
            .run_id(RunId::new("run_replay"))
            .thread_id(ThreadId::new("replay"))
            .environment(journal.environment.environment())
            .build();
        context.provide(JournalHandle::new(journal.clone()));
        let traced = Arc::<Mutex<Vec<TraceEntry>>>::default();
        let sink = Arc::clone(&traced);
        context.set_trace(Trace::new(move |entry| lock(&sink).push(entry)));
        let (mut events, mut end) = (Vec::new(), End::Truncated);
        match agent.oneshot(request.with_context(context)).await {
            Err(error) => end = End::from(Error::from(error.into())),
            Ok(response) => {
                let mut body = pin!(response.body);
                while let Some(item) = body.next().await {
                    match item {
                        Ok(Event::Finish(finish)) => end = End::Finished(finish),
                        Ok(event) => join(&mut events, event),
                        Err(error) => end = End::from(error),
                    }
                }
            }
        }
        let traced = std::mem::take(&mut *lock(&traced));
        let decisions = traced.into_iter().filter(is_of_run);
        Self {
            decisions: decisions.map(|entry| entry.step).collect(),
            steps: std::mem::take(&mut *lock(&journal.steps)),
            events,
            end,
        }
    }
}

/// Adds an event; a record has the deltas of an answer joined.
fn join(events: &mut Vec<Event>, event: Event) {
    let joined = match (events.last_mut(), &event) {
        (Some(Event::TextDelta(last)), Event::TextDelta(next))
        | (Some(Event::ReasoningDelta(last)), Event::ReasoningDelta(next))
        | (Some(Event::RefusalDelta(last)), Event::RefusalDelta(next)) => Some((last, next)),
        _ => None,
    };
    match joined {
        Some((last, next)) => *last = Str::concat([last.as_str(), next.as_str()]),
        None => events.push(event),
    }
}

/// Whether an entry is one of the run, and not of a step.
fn is_of_run(entry: &TraceEntry) -> bool {
    let in_call = matches!(
        entry.step,
        TraceStep::Prepared(_)
            | TraceStep::Invalid
            | TraceStep::Gated(_)
            | TraceStep::Suspended
            | TraceStep::Resumed(_)
            | TraceStep::Settled(_)
            | TraceStep::StateChanged { .. }
    );
    entry.within.is_empty() && !in_call
}

/// The results of the steps of the first run, in the order of their beginnings; `None` for those that the run has left
/// without one.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<Option<Recorded>>>>);

impl Record {
    fn begin(&self, is_replay: bool) -> Attempt {
        Attempt {
            record: self.clone(),
            is_replay,
            steps: Arc::default(),
            environment: ReplayEnvironment::new([7; 16], time(0)),
        }
    }
}

/// The journal of the first run, or of a replay.
#[derive(Clone)]
struct Attempt {
    record: Record,
    is_replay: bool,
    steps: Arc<Mutex<Vec<Str>>>,
    environment: ReplayEnvironment,
}

impl Journal for Attempt {
    fn step(&self, name: StepName, work: StepWork) -> BoxFuture<Recorded> {
        let it = self.clone();
        Box::pin(async move {
            let at = {
                let mut steps = lock(&it.steps);
                steps.push(name.to_string().into());
                steps.len()
            };
            let known = match it.is_replay {
                true => lock(&it.record.0).get(at - 1).cloned(),
                false => {
                    lock(&it.record.0).push(None);
                    let work = work(StepAttempt::first()).fuse();
                    let record = it.record.clone();
                    let made = Made {
                        name,
                        work,
                        record,
                        at,
                    };
                    Some(Some(made.await))
                }
            };
            let unknown = "the replay requests a step that the run did not have";
            let known = known.ok_or_else(|| Error::new(ErrorKind::Conflict, unknown))?;
            let Some(known) = known else {
                // The run leaves it again.
                return std::future::pending().await;
            };
            // Each step takes a second.
            it.environment.advance(time(at));
            Ok(known)
        })
    }
}

/// The work of a step, which is recorded when it ends; that of a model call also if it ends because the run has left it.
struct Made {
    name: StepName,
    work: Fuse<Pin<Box<dyn Future<Output = Recorded> + Send>>>,
    record: Record,
    at: usize,
}

impl Made {
    fn record(&self, recorded: &Recorded) {
        if let Some(record) = lock(&self.record.0).get_mut(self.at - 1) {
            *record = Some(recorded.clone());
        }
    }
}

impl Future for Made {
    type Output = Recorded;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Recorded> {
        let recorded = ready!(self.work.poll_unpin(cx));
        self.record(&recorded);
        Poll::Ready(recorded)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let is_polled = matches!(self.name, StepName::Model(_)) && !std::thread::panicking();
        if is_polled && let Some(recorded) = (&mut self.work).now_or_never() {
            self.record(&recorded);
        }
    }
}

/// A time after so many steps.
fn time(steps: usize) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + steps as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
