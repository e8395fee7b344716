//! A round service for tests, without a toolset.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let tools = ScriptedTools::new().answers("search", "42");
//! let agent = ServiceBuilder::new().layer(AgentLayer::new(tools.clone())).service(
//!     ScriptedModel::new()
//!         .tool_call("search", json!({ "query": "the answer" }))
//!         .then()
//!         .text("It is 42."),
//! );
//!
//! let answer = agent.oneshot(ChatRequest::user("What is the answer?")).await?.collect().await?;
//! assert_eq!(answer.text(), "It is 42.");
//! assert_eq!(tools.calls()[0].arguments.as_str(), r#"{"query":"the answer"}"#);
//! # Ok(())
//! # }
//! ```
//!
//! # Calls that wait for a decision
//!
//! A tool can [require approval](ScriptedTools::asks) of each of its calls. The run is then
//! interrupted, and resumes with its state and the replies:
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Outcome, Reply};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let tools = ScriptedTools::new().asks("pay", "paid");
//! let agent = AgentLayer::new(tools.clone())
//!     .layer(ScriptedModel::new().tool_call("pay", json!({})).then().text("Done."));
//!
//! let answer = agent.clone().oneshot(ChatRequest::user("Pay them.")).await?.collect().await?;
//! assert_eq!(answer.finish.outcome, Outcome::Interrupted);
//! assert!(tools.calls().is_empty());
//!
//! let state = *answer.finish.state.unwrap();
//! let replies = state.interrupts().iter().map(|asked| Reply::approve(asked.id.clone())).collect();
//! let answer = agent.oneshot(ChatRequest::resume(state, replies)).await?.collect().await?;
//! assert_eq!((answer.text().as_str(), tools.calls().len()), ("Done.", 1));
//! # Ok(())
//! # }
//! ```
//!
//! | a call | result |
//! |---|---|
//! | of a tool that requires approval, for the first time | waits |
//! | that all replies approve | runs, with the arguments of the replies |
//! | that a reply denies, cancels or answers | denied, cancelled, or done with that result; does not run |
//! | with an interrupt that has no reply | waits again, with the same interrupts |
//! | that waited only for other calls of its round | runs |
//! | whose interrupts have another reason than [`TOOL_CALL`](interrupt::TOOL_CALL) | runs; the tool reads the replies from [`ToolCall::resumed`] |
//! | that waits according to a history, but not according to a state | denied (`approval-invalid`) |
//! | that the client executes | done with the client's result |
//! | that was running when the process died | runs again if its tool is read-only, else unknown |

use crate::Pace;
use concentric_core::{
    Arguments, BoxTool, Clearance, Decision, Error, Executor, Interrupt, Refusal, Reply, RoundCall,
    RoundEvent, Str, Suspension, ToolCall, ToolCallPart, ToolContent, ToolOutcome, ToolRound,
    ToolService, ToolSource, ToolSpec, ToolSpecs, Transcript,
    call::{CallStage, CallState},
    interrupt::{self, SuspendedBy},
    machine::RunLimits,
};
use futures_util::{
    FutureExt, Stream,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use serde_json::json;
use std::{
    fmt,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};
use tower::{ServiceExt, service_fn};
use tower_service::Service;

/// A round service that runs the calls of a round concurrently, and records them.
///
/// It is for tests of the loop and of layers around it. Clones share the record. See the
/// [module docs](self) for an example.
#[derive(Clone, Debug, Default)]
pub struct ScriptedTools {
    tools: Vec<(Arc<ToolSpec>, BoxTool)>,
    questions: Questions,
    pace: Pace,
    seen: Arc<Mutex<Seen>>,
}

type Ask = dyn Fn(&ToolCall) -> Suspension + Send + Sync;

/// The suspensions of calls that wait before they run, by tool name.
#[derive(Clone, Default)]
struct Questions(Vec<(Str, Arc<Ask>)>);

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(tool, _)| tool))
            .finish()
    }
}

#[derive(Debug, Default)]
struct Seen {
    calls: Vec<ToolCallPart>,
    live: usize,
    done: usize,
    dropped: usize,
}

impl ScriptedTools {
    /// Creates a round service without tools.
    pub fn new() -> Self {
        Self::default()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tool that returns `content`.
    #[must_use]
    pub fn answers(self, name: impl Into<Str>, content: impl Into<ToolContent>) -> Self {
        let outcome = ToolOutcome::done(content);
        self.tool(name, move |_| ready(outcome.clone()))
    }

    /// Adds a tool that returns `content`, and requires approval of each call.
    #[must_use]
    pub fn asks(self, name: impl Into<Str>, content: impl Into<ToolContent>) -> Self {
        let name = name.into();
        self.answers(name.clone(), content)
            .waits(name, |call| Suspension::new(vec![question(call)]))
    }

    /// Suspends each call of the tool `name` before it runs, with the suspension that `suspension`
    /// returns.
    ///
    /// [`question`] creates an approval interrupt for it.
    #[must_use]
    pub fn waits<F>(mut self, name: impl Into<Str>, suspension: F) -> Self
    where
        F: Fn(&ToolCall) -> Suspension + Send + Sync + 'static,
    {
        self.questions.0.push((name.into(), Arc::new(suspension)));
        self
    }

    /// Waits at `pace` before each outcome and each suspension; the default is [`Pace::AtOnce`].
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Adds a tool that never completes.
    #[must_use]
    pub fn never(self, name: impl Into<Str>) -> Self {
        self.tool(name, |_| std::future::pending())
    }

    /// Adds a tool from an async function.
    #[must_use]
    pub fn tool<F, Fut>(self, name: impl Into<Str>, f: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = ToolOutcome> + Send + 'static,
    {
        self.service(
            any_object(name),
            service_fn(move |call| f(call).map(Ok::<_, Error>)),
        )
    }

    /// Adds a tool from a service, such as a tool with layers around it.
    #[must_use]
    pub fn service<S>(mut self, spec: ToolSpec, service: S) -> Self
    where
        S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.tools.push((Arc::new(spec), BoxTool::new(service)));
        self
    }

    /// Returns the calls that were started, in order.
    pub fn calls(&self) -> Vec<ToolCallPart> {
        self.seen().calls.clone()
    }

    /// Returns the number of calls that are running.
    pub fn live(&self) -> usize {
        self.seen().live
    }

    /// Returns the number of calls that have completed.
    pub fn done(&self) -> usize {
        self.seen().done
    }

    /// Returns the number of calls that were dropped before they completed.
    pub fn dropped(&self) -> usize {
        self.seen().dropped
    }
}

/// Creates the interrupt of [`ScriptedTools::asks`], for the approval of `call`.
///
/// # Panics
///
/// Panics if the call does not belong to a round.
pub fn question(call: &ToolCall) -> Interrupt {
    #[expect(clippy::expect_used, reason = "a test's mistake")]
    let id = call.context.interrupt_id().expect("a call of a round");
    Interrupt::new(id, interrupt::TOOL_CALL).about(call.id().clone())
}

fn any_object(name: impl Into<Str>) -> ToolSpec {
    ToolSpec::new(name, "", json!({ "type": "object" }))
}

impl ToolSource for ScriptedTools {
    fn specs(&self) -> ToolSpecs {
        self.tools.iter().map(|(spec, _)| spec.clone()).collect()
    }

    fn rules(&self) -> RunLimits {
        let mut rules = RunLimits::default();
        rules.resumes = true;
        rules
    }
}

impl Service<ToolRound> for ScriptedTools {
    type Response = ScriptedOutcomes;
    type Error = Error;
    type Future = Ready<Result<ScriptedOutcomes, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        let outcomes = FuturesUnordered::new();
        for (index, call) in round.calls.into_iter().enumerate() {
            let transcript = round.transcript.clone();
            let (pace, context) = (self.pace, round.context.at_call(&call));
            let event = match self.begin(call, transcript, &round.context) {
                Begun::Settled(outcome) => ready(Ok(RoundEvent::settled(index, outcome))).boxed(),
                Begun::Waiting(on) => {
                    ready(Ok(RoundEvent::suspended(index, on, SuspendedBy::Gate))).boxed()
                }
                Begun::Runs(tool, call) => {
                    let running = Running::new(&self.seen, call.part().clone());
                    let outcome = tool.oneshot(*call);
                    async move {
                        let event = match outcome.await {
                            Ok(outcome) => RoundEvent::settled(index, outcome),
                            Err(error) => match error.suspension() {
                                Some((on, by)) => RoundEvent::suspended(index, on.clone(), by),
                                None => return Err(error),
                            },
                        };
                        running.done();
                        Ok(event)
                    }
                    .boxed()
                }
            };
            outcomes.push(match pace {
                Pace::AtOnce => event,
                _ => async move {
                    pace.pass(&context).await;
                    event.await
                }
                .boxed(),
            });
        }
        ready(Ok(ScriptedOutcomes(outcomes)))
    }
}

/// The first state of a call in a round.
enum Begun {
    Settled(ToolOutcome),
    Waiting(Suspension),
    Runs(BoxTool, Box<ToolCall>),
}

impl ScriptedTools {
    fn begin(
        &self,
        call: RoundCall,
        transcript: Transcript,
        context: &concentric_core::Context,
    ) -> Begun {
        if let Some(refusal) = call.refusal() {
            return Begun::Settled(refusal.outcome(&call.call));
        }
        if call.call.executor == Executor::Client {
            return Begun::Settled(of_client(&call));
        }
        let found = self
            .tools
            .iter()
            .find(|(spec, _)| spec.name == call.call.name);
        let Some((spec, tool)) = found else {
            let refusal = Refusal::NotOffered(Arc::default());
            return Begun::Settled(refusal.outcome(&call.call));
        };
        if call.is_recovered() && !spec.annotations.read_only {
            return Begun::Settled(ToolOutcome::unknown("The process died while the tool ran."));
        }
        let state = call.state.clone();
        let mut call = ToolCall::of_round(call, Clearance::Ungated, transcript, context)
            .with_spec(Arc::clone(spec));
        match replied(&state, call.arguments()) {
            None => {
                let mut questions = self.questions.0.iter();
                if let Some((_, ask)) = questions.find(|(tool, _)| tool == call.name()) {
                    return Begun::Waiting(ask(&call));
                }
            }
            Some(Replied::Runs(edited)) => {
                if let Some(edited) = edited {
                    call.set_arguments(edited);
                }
            }
            Some(Replied::Settled(outcome)) => return Begun::Settled(outcome),
            Some(Replied::Waits(on)) => return Begun::Waiting(on),
        }
        Begun::Runs(tool.clone(), Box::new(call))
    }
}

/// The result of the replies to a call that waited.
enum Replied {
    Runs(Option<Arguments>),
    Settled(ToolOutcome),
    Waits(Suspension),
}

/// Applies the replies to a call with `arguments`; `None` if the call is new.
fn replied(state: &CallState, arguments: &Arguments) -> Option<Replied> {
    let resume = match &state.stage {
        CallStage::Resumed(resume) => resume,
        CallStage::Released { .. } => return Some(Replied::Runs(None)),
        CallStage::Unverified(_) => {
            return Some(Replied::Settled(ToolOutcome::denied(
                "approval-invalid: no interrupt was recorded for this call.",
            )));
        }
        _ => return None,
    };
    let reply_to = |asked: &Interrupt| {
        let mut replies = resume.replies.iter();
        replies.find(|reply| reply.interrupt_id == asked.id)
    };
    let interrupts = &resume.on.interrupts;
    if interrupts.iter().any(|asked| reply_to(asked).is_none()) {
        return Some(Replied::Waits(resume.on.clone()));
    }
    let mut edited = None;
    // Interrupts with another reason are the tool's to read.
    for asked in interrupts
        .iter()
        .filter(|asked| asked.reason == interrupt::TOOL_CALL)
    {
        let Some(Ok(decision)) = reply_to(asked).map(Reply::decision) else {
            let invalid = ToolOutcome::denied("approval-invalid: not a decision.");
            return Some(Replied::Settled(invalid));
        };
        match (state.decide(arguments, None, &decision), decision) {
            (Err(outcome), _) => return Some(Replied::Settled(outcome)),
            (
                Ok(Clearance::Decided(to)),
                Decision::Approved {
                    edited: Some(_), ..
                },
            ) => edited = Some(to),
            (Ok(_), _) => {}
        }
    }
    Some(Replied::Runs(edited))
}

/// The outcome of a call that the client executes.
fn of_client(call: &RoundCall) -> ToolOutcome {
    match call.state.stage.replies().first().map(Reply::decision) {
        Some(Ok(Decision::Approved { .. }) | Err(_)) | None => {
            ToolOutcome::denied("approval-invalid: the client executes this call.")
        }
        Some(Ok(decision)) => {
            let decided = call.state.decide(&call.call.arguments, None, &decision);
            decided
                .err()
                .unwrap_or_else(|| ToolOutcome::cancelled("The call was cancelled."))
        }
    }
}

/// Counts a call as live until it is dropped.
struct Running {
    seen: Arc<Mutex<Seen>>,
    done: bool,
}

impl Running {
    fn new(seen: &Arc<Mutex<Seen>>, call: ToolCallPart) -> Self {
        let mut lock = seen.lock().unwrap_or_else(PoisonError::into_inner);
        lock.calls.push(call);
        lock.live += 1;
        drop(lock);
        Self {
            seen: Arc::clone(seen),
            done: false,
        }
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.live -= 1;
        if self.done {
            seen.done += 1;
        } else {
            seen.dropped += 1;
        }
    }
}

/// A stream of the outcomes of [`ScriptedTools`], in order of completion.
#[must_use = "streams do nothing unless polled"]
pub struct ScriptedOutcomes(FuturesUnordered<BoxFuture<'static, Result<RoundEvent, Error>>>);

impl Stream for ScriptedOutcomes {
    type Item = Result<RoundEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl fmt::Debug for ScriptedOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedOutcomes")
            .field("running", &self.0.len())
            .finish()
    }
}
