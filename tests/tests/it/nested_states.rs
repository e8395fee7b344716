//! Agents in a model's place: what is written down of their runs, and how these go on.

use concentric_core::{
    AgentLayer, Answer, BoxModel, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Event,
    FinishReason, Interrupt, InterruptId, NoTools, Outcome, PartKind, Reply, Resume, ResumePoint,
    RoundEvent, Suspension, ToolCallPart, ToolOutcome, ToolRound, ToolSpec, ToolSpecs, Transcript,
    Usage,
    agent::ToolSource,
    interrupt::{self, SuspendedBy},
    machine::{RunLimits, RunState},
    store::Checkpoint,
};
use concentric_layers::CommitLayer;
use concentric_test::{Pace, ScriptedModel, watched};
use concentric_tools::{Toolset, agent_tool};
use futures_util::{StreamExt, future::BoxFuture, stream, stream::BoxStream};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    future::{Future, ready},
    sync::{Arc, Mutex},
    task::{self, Poll},
    time::{Duration, SystemTime},
};
use tower::{Layer, Service, ServiceExt, service_fn};

const USED: Usage = Usage::new(10, 1);

/// Runs `test` with doubles of each pace; one that spins fails.
fn at_each_pace<F>(test: impl Fn(Pace) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for pace in Pace::ALL {
        watched(test(pace));
    }
}

/// A model that answers with these, one call after another.
#[derive(Clone)]
struct Model(Arc<Mutex<VecDeque<Vec<Event>>>>, Pace);

impl Model {
    fn new(pace: Pace, answers: impl IntoIterator<Item = Vec<Event>>) -> Self {
        Self(Arc::new(Mutex::new(answers.into_iter().collect())), pace)
    }

    /// How many answers it still has.
    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn boxed(&self) -> BoxModel {
        let (answers, pace) = (Arc::clone(&self.0), self.1);
        BoxModel::new(service_fn(move |request: ChatRequest| {
            let answer = answers.lock().unwrap().pop_front();
            let mut answer = answer.expect("it is called no more often than it was");
            answer.push(Event::finish(FinishReason::Stop, USED));
            async move {
                pace.pass(&request.context).await;
                let events = stream::iter(answer).then(move |event| {
                    let context = request.context.clone();
                    async move {
                        pace.pass(&context).await;
                        Ok::<_, Error>(event)
                    }
                });
                Ok::<_, Error>(ChatResponse::new(events.boxed()))
            }
        }))
    }
}

fn calls(id: &str, tool: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), tool.to_owned(), "{}"))
}

/// A tool that is done, or asks until when it is to be.
#[derive(Clone)]
struct Tool {
    name: &'static str,
    pace: Pace,
    asks_until: Option<SystemTime>,
    // Of each call, whether a process that died had started it.
    ran: Arc<Mutex<Vec<bool>>>,
}

impl Tool {
    fn new(pace: Pace, name: &'static str) -> Self {
        Self {
            name,
            pace,
            asks_until: None,
            ran: Arc::default(),
        }
    }

    fn ran(&self) -> Vec<bool> {
        self.ran.lock().unwrap().clone()
    }
}

impl ToolSource for Tool {
    fn specs(&self) -> ToolSpecs {
        ToolSpecs::new([Arc::new(ToolSpec::new(self.name, "", json!({})))])
    }

    fn rules(&self) -> RunLimits {
        let mut rules = RunLimits::default();
        rules.resumes = true;
        rules
    }
}

impl Service<ToolRound> for Tool {
    type Response = BoxStream<'static, Result<RoundEvent, Error>>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        let mut events = Vec::new();
        for (index, call) in round.calls.into_iter().enumerate() {
            let context = round.context.at_call(&call);
            events.push(Ok(match self.asks_until {
                Some(until) if call.state.resumed().is_none() => {
                    let id = context.interrupt_id().unwrap();
                    let asked = Interrupt::new(id, interrupt::TOOL_CALL).until(until);
                    RoundEvent::suspended(index, Suspension::new(vec![asked]), SuspendedBy::Gate)
                }
                _ => {
                    self.ran.lock().unwrap().push(call.is_recovered());
                    RoundEvent::settled(index, ToolOutcome::done("seen"))
                }
            }));
        }
        let (pace, context) = (self.pace, round.context);
        Box::pin(async move {
            pace.pass(&context).await;
            let events = stream::iter(events).then(move |event| {
                let context = context.clone();
                async move {
                    pace.pass(&context).await;
                    event
                }
            });
            Ok(events.boxed())
        })
    }
}

/// A place where states are written to.
#[derive(Clone, Default)]
struct Saved(Arc<Mutex<Vec<RunState>>>);

impl Saved {
    fn checkpoint(&self) -> Checkpoint {
        let saved = self.clone();
        Checkpoint::new(move |state| {
            let saved = saved.clone();
            Box::pin(async move {
                // Not at once, as a database.
                tokio::task::yield_now().await;
                let json = state.to_json().unwrap();
                let read = RunState::from_json(json.as_bytes(), json.len()).unwrap();
                assert_eq!(read, state);
                saved.0.lock().unwrap().push(read);
                Ok(())
            })
        })
    }

    fn all(&self) -> Vec<RunState> {
        self.0.lock().unwrap().clone()
    }
}

async fn run(agent: &BoxModel, mut request: ChatRequest, checkpoint: Checkpoint) -> Answer {
    request.checkpoint = Some(checkpoint);
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

fn agent(tool: &Tool, model: BoxModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(tool.clone()).layer(model))
}

fn agent_without_tools(model: BoxModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(NoTools).layer(model))
}

/// An agent of `tool`, in the model's place of so many others that have no tools.
fn nested(levels: usize, tool: &Tool, model: &Model) -> BoxModel {
    let innermost = agent(tool, model.boxed());
    (0..levels).fold(innermost, |inner, _| agent_without_tools(inner))
}

/// The state of the agent that is so many levels within.
fn within(state: &RunState, levels: usize) -> Value {
    let state: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
    (0..levels).fold(state, |state, _| state["stage"]["inner"]["state"].clone())
}

fn looks_twice() -> [Vec<Event>; 3] {
    [
        vec![Event::text("I look. "), calls("a", "look")],
        vec![Event::text("Again. "), calls("b", "look")],
        vec![Event::text("Seen.")],
    ]
}

#[test]
fn f044_an_agent_in_a_models_place_goes_on_where_it_was_written_down() {
    at_each_pace(|pace| async move {
        for levels in 1..=3 {
            let (tool, model, saved) = (
                Tool::new(pace, "look"),
                Model::new(pace, looks_twice()),
                Saved::default(),
            );
            let agent = nested(levels, &tool, &model);
            let whole = run(&agent, ChatRequest::user("Look."), saved.checkpoint()).await;
            assert_eq!(whole.finish.usage, Usage::new(30, 3));
            assert_eq!(
                saved.all().len(),
                2,
                "once for each round, of whichever agent"
            );

            for (at, state) in saved.all().into_iter().enumerate() {
                let inner = within(&state, levels);
                let call = &inner["stage"]["round"]["calls"][0];
                assert_eq!(call["running"], json!({"recorded": false}));
                assert_eq!(inner["step"], json!(at + 1));

                // Another process has what the model has not said yet.
                let left: Vec<_> = looks_twice().into_iter().skip(at + 1).collect();
                let (tool, model, again) = (
                    Tool::new(pace, "look"),
                    Model::new(pace, left),
                    Saved::default(),
                );
                let agent = nested(levels, &tool, &model);
                let request = ChatRequest::resume(state, Vec::new());
                let answer = run(&agent, request, again.checkpoint()).await;
                assert_eq!(answer.finish.outcome, Outcome::Completed);
                assert_eq!(answer.finish.usage, whole.finish.usage, "counted once");
                assert_eq!(answer.transcript(), whole.transcript());
                assert_eq!(model.left(), 0);
                assert_eq!(tool.ran(), [true, false][..2 - at]);
                // It is written down from there on, and from the call that is run again.
                assert_eq!(again.all().len(), 2 - at);
                assert_eq!(
                    within(&again.all()[0], levels)["stage"],
                    inner_again(&inner)
                );
            }
        }
    });
}

/// The round of `inner`, once it is taken up.
fn inner_again(inner: &Value) -> Value {
    let mut stage = inner["stage"].clone();
    stage["round"]["calls"][0]["earlier"] = json!({"lost": {"recorded": false}});
    stage["round"]["begun"] = json!(true);
    stage
}

#[test]
fn calls_of_the_agent_around_run_once_when_the_agent_within_is_done() {
    at_each_pace(|pace| async move {
        let (note, look) = (|| Tool::new(pace, "note"), || Tool::new(pace, "look"));
        let answers = || {
            [
                vec![calls("n", "note"), calls("l", "look")],
                vec![Event::text("Noted.")],
            ]
        };
        let (outer, inner, saved) = (note(), look(), Saved::default());
        let model = Model::new(pace, answers());
        let around = agent(&outer, agent(&inner, model.boxed()));
        let whole = run(&around, ChatRequest::user("Look."), saved.checkpoint()).await;
        assert_eq!((outer.ran(), inner.ran()), (vec![false], vec![false]));
        assert_eq!(saved.all().len(), 2);
        assert!(within(&saved.all()[0], 1)["stage"]["round"].is_object());
        assert!(saved.all()[1].open_round().is_some());

        for (state, recovered) in saved.all().into_iter().zip([false, true]) {
            let (outer, inner) = (note(), look());
            let model = Model::new(pace, answers().into_iter().skip(1));
            let around = agent(&outer, agent(&inner, model.boxed()));
            let request = ChatRequest::resume(state, Vec::new());
            let answer = run(&around, request, Saved::default().checkpoint()).await;
            assert_eq!(answer.finish.outcome, Outcome::Completed);
            assert_eq!(outer.ran(), [recovered], "{recovered}");
            assert_eq!(inner.ran(), [true][..usize::from(!recovered)]);
            assert_eq!(answer.finish.usage, whole.finish.usage);
            // What was said then is the same; what is said now is another message.
            let before = |answer: &Answer| answer.transcript().unwrap().before_last().cloned();
            assert_eq!(before(&answer), before(&whole));
        }
    });
}

#[test]
fn a_result_has_its_call_also_if_a_layer_in_between_held_it_back() {
    at_each_pace(|pace| async move {
        let tool = Tool::new(pace, "look");
        let held_back = |model: &Model, tool: &Tool| {
            let inner = agent(tool, model.boxed());
            agent_without_tools(BoxModel::new(CommitLayer::whole().layer(inner)))
        };
        let (model, saved) = (Model::new(pace, looks_twice()), Saved::default());
        let around = held_back(&model, &tool);
        run(&around, ChatRequest::user("Look."), saved.checkpoint()).await;
        for (at, state) in saved.all().into_iter().enumerate() {
            let model = Model::new(pace, looks_twice().into_iter().skip(at + 1));
            let around = held_back(&model, &tool);
            let request = ChatRequest::resume(state, Vec::new());
            let answer = run(&around, request, Saved::default().checkpoint()).await;
            let said = answer.transcript().unwrap().last().unwrap().as_message();
            assert_eq!(said.tool_calls().count(), 2 - at);
            let is_result =
                |part: &&concentric_core::Part| matches!(part.kind, PartKind::ToolResult(_));
            assert_eq!(said.parts.iter().filter(is_result).count(), 2 - at);
            assert!(said.text().ends_with("Seen."));
        }
    });
}

#[test]
fn an_agent_that_is_a_tool_is_not_written_down_in_place_of_the_run() {
    at_each_pace(|pace| async move {
        let (tool, saved) = (Tool::new(pace, "look"), Saved::default());
        let helper = nested(0, &tool, &Model::new(pace, looks_twice()));
        let model = ScriptedModel::new().tool_call("help", json!({"task": "Look."}));
        let tools = Toolset::new().tool(agent_tool("help", "", helper));
        let agent = AgentLayer::new(tools).layer(model.then().text("Done."));
        let request = ChatRequest::user("Help.");
        run(&BoxModel::new(agent), request, saved.checkpoint()).await;
        assert_eq!(tool.ran().len(), 2);
        assert_eq!(saved.all().len(), 1);
    });
}

#[test]
fn an_agent_within_that_cannot_be_written_down_starts_no_tool() {
    at_each_pace(|pace| async move {
        let tool = Tool::new(pace, "look");
        let around = nested(2, &tool, &Model::new(pace, looks_twice()));
        let mut request = ChatRequest::user("Look.");
        let fails = Checkpoint::new(|_| {
            Box::pin(ready(Err(Error::new(
                ErrorKind::Server,
                "the disk is full",
            ))))
        });
        request.checkpoint = Some(fails);
        let answer = around.oneshot(request).await.unwrap();
        let error = answer.collect().await.unwrap_err();
        assert_eq!(error.error.kind(), ErrorKind::Server);
        assert!(tool.ran().is_empty());
    });
}

#[test]
fn a_reply_that_was_accepted_in_time_is_not_late_within() {
    at_each_pace(|pace| async move {
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        for levels in 0..=2 {
            let mut tool = Tool::new(pace, "look");
            tool.asks_until = Some(until);
            let agent = nested(levels, &tool, &Model::new(pace, looks_twice()));
            let none = Saved::default();
            let answer = run(&agent, ChatRequest::user("Look."), none.checkpoint()).await;
            let state = answer.finish.state.clone().unwrap();
            let replies = || -> Vec<Reply> {
                let asked: Vec<InterruptId> =
                    state.interrupts().iter().map(|i| i.id.clone()).collect();
                asked.into_iter().map(Reply::approve).collect()
            };
            let resumed = |accepted: Option<SystemTime>| {
                let resume = Resume::new(ResumePoint::State(state.clone()), replies());
                let mut request = ChatRequest::new(Transcript::new());
                request.resume = Some(match accepted {
                    Some(at) => resume.accepted_at(at),
                    None => resume,
                });
                request
            };
            let late = agent.clone().oneshot(resumed(None)).await.unwrap_err();
            assert_eq!(late.code(), Some("expired"));
            let in_time = resumed(Some(until - Duration::from_secs(1)));
            run(&agent, in_time, none.checkpoint()).await;
            assert_eq!(tool.ran(), [false]);
        }
    });
}
