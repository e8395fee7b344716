//! Interrupted and resumed runs: checkpoints, and agents as models.

use concentric_core::{
    Agent, AgentLayer, Answer, CancelReason, ChatRequest, Error, ErrorKind, Event, Interrupt,
    InterruptId, ModelService, Outcome, Reply, SideEffects, Suspension, ToolOutcome, ToolSpec,
    ToolStatus, Turn, Usage,
    machine::{Machine, RunLimits, RunState},
    store::Checkpoint,
};
use concentric_test::{ScriptedModel, ScriptedTools, assert_finishes, shape, tools::question};
use futures_util::StreamExt;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceExt};

fn written(state: &RunState) -> RunState {
    let json = state.to_json().unwrap();
    let read = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    assert_eq!(&read, state);
    read
}

/// Creates a request that resumes a run of `agent`, with a reply to each interrupt.
fn resume(state: &RunState, reply: impl Fn(InterruptId) -> Reply) -> ChatRequest {
    let asked = state.interrupts();
    let replies = asked.iter().map(|asked| reply(asked.id.clone())).collect();
    ChatRequest::resume(written(state), replies)
}

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    agent
        .clone()
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

fn state_of(answer: &Answer) -> RunState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    (**answer.finish.state.as_ref().unwrap()).clone()
}

fn status_of(answer: &Answer, tool: &str) -> ToolStatus {
    let transcript = answer.finish.transcript.as_ref().unwrap();
    let results: Vec<_> = transcript.rev().flat_map(Turn::results).collect();
    results
        .iter()
        .find(|r| r.name == *tool)
        .unwrap()
        .outcome
        .status
}

// ---- scripted tools ----

#[tokio::test]
async fn a_scripted_call_follows_its_reply() {
    for (reply, status, calls) in [
        (
            Reply::approve as fn(InterruptId) -> Reply,
            ToolStatus::Done,
            1,
        ),
        (|id| Reply::deny(id, "no"), ToolStatus::Denied, 0),
        (Reply::cancel, ToolStatus::Cancelled, 0),
        (|id| Reply::answer(id, "paid by hand"), ToolStatus::Done, 0),
    ] {
        let tools = ScriptedTools::new().asks("pay", "paid");
        let model = ScriptedModel::new()
            .tool_call("pay", json!({}))
            .then()
            .text("ok");
        let agent = AgentLayer::new(tools.clone()).layer(model);
        let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
        assert_eq!(state.interrupts().len(), 1);
        let answer = run(&agent, resume(&state, reply)).await;
        assert_eq!(status_of(&answer, "pay"), status);
        assert_eq!(tools.calls().len(), calls);
    }
}

#[tokio::test]
async fn a_scripted_call_runs_with_the_arguments_of_the_reply() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new().tool_call("pay", json!({"eur": 5}));
    let agent = AgentLayer::new(tools.clone()).layer(model.then().text("ok"));
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let edited = |id| Reply::approve_edited(id, json!({"eur": 4}));
    run(&agent, resume(&state, edited)).await;
    assert_eq!(tools.calls()[0].arguments.as_str(), r#"{"eur":4}"#);
}

#[tokio::test]
async fn a_scripted_call_waits_until_all_its_questions_have_a_reply() {
    let tools = ScriptedTools::new()
        .answers("pay", "paid")
        .waits("pay", |call| {
            let second = Interrupt::new(InterruptId::new("second"), "tool_call");
            Suspension::new(vec![question(call), second])
        });
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model);
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let one = vec![Reply::approve(InterruptId::new("second"))];
    let state = state_of(&run(&agent, ChatRequest::resume(state, one)).await);
    assert!(tools.calls().is_empty());
    let answer = run(&agent, resume(&state, Reply::approve)).await;
    assert_eq!(status_of(&answer, "pay"), ToolStatus::Done);
}

#[tokio::test]
async fn a_tool_may_raise_its_own_interrupt() {
    let tools = ScriptedTools::new().service(
        ToolSpec::new("where", "", json!({"type": "object"})),
        tower::service_fn(
            async |call: concentric_core::ToolCall| match call.resumed() {
                None => {
                    let asked = Interrupt::new(call.context.interrupt_id().unwrap(), "choice");
                    Err(Error::suspended(Suspension::new(vec![asked])))
                }
                Some(resume) => {
                    let said = resume.replies[0].payload.clone().unwrap();
                    Ok(ToolOutcome::done(said["city"].as_str().unwrap()))
                }
            },
        ),
    );
    let model = ScriptedModel::new()
        .tool_call("where", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools).layer(model);
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let there = |id| Reply::resolve(id, json!({"city": "Bonn"}));
    let answer = run(&agent, resume(&state, there)).await;
    let transcript = answer.finish.transcript.unwrap();
    let results: Vec<_> = transcript.rev().flat_map(Turn::results).collect();
    assert_eq!(results[0].outcome, ToolOutcome::done("Bonn"));
}

#[tokio::test]
async fn a_scripted_call_suspended_only_by_a_history_is_denied() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model);
    let first = run(&agent, ChatRequest::user("hi")).await;
    let state = state_of(&first);
    let (transcript, open) = (state.transcript().clone(), state.open_round().unwrap());
    let replies = vec![Reply::approve(state.interrupts()[0].id.clone())];
    let request = ChatRequest::resume_history(transcript, open, replies);
    let answer = run(&agent, request).await;
    assert_eq!(status_of(&answer, "pay"), ToolStatus::Denied);
    assert!(tools.calls().is_empty());
}

// ---- checkpoints ----

/// Stored states, each with the number of calls that had been started.
#[derive(Clone, Default)]
struct Saved(Arc<Mutex<Vec<(RunState, usize)>>>);

impl Saved {
    fn checkpoint(&self, tools: &ScriptedTools) -> Checkpoint {
        let (saved, tools) = (self.clone(), tools.clone());
        Checkpoint::new(move |state| {
            let (saved, tools) = (saved.clone(), tools.clone());
            Box::pin(async move {
                // Pending at first, as a database is.
                tokio::task::yield_now().await;
                let state = written(&state);
                saved.0.lock().unwrap().push((state, tools.calls().len()));
                Ok(())
            })
        })
    }

    fn all(&self) -> Vec<(RunState, usize)> {
        self.0.lock().unwrap().clone()
    }
}

fn with(mut request: ChatRequest, checkpoint: Checkpoint) -> ChatRequest {
    request.checkpoint = Some(checkpoint);
    request
}

#[tokio::test]
async fn a_run_is_persisted_before_each_round() {
    let tools = ScriptedTools::new()
        .answers("search", "42")
        .asks("pay", "paid");
    let agent = AgentLayer::new(tools.clone()).layer(
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .tool_call("search", json!({}))
            .tool_call("pay", json!({}))
            .then()
            .text("ok"),
    );
    let saved = Saved::default();
    let request = with(ChatRequest::user("hi"), saved.checkpoint(&tools));
    let state = state_of(&run(&agent, request).await);
    let counts = |saved: &Saved| saved.all().iter().map(|(_, n)| *n).collect::<Vec<_>>();
    assert_eq!(counts(&saved), [0, 1]);

    let request = resume(&state, Reply::approve);
    run(&agent, with(request, saved.checkpoint(&tools))).await;
    assert_eq!(counts(&saved), [0, 1, 2]);
    assert_eq!(tools.calls().len(), 3);

    // Another process may resume any of them: running calls are not executed again, recorded
    // interrupts are not raised again, and nothing is lost.
    for (at, (state, _)) in saved.all().into_iter().enumerate() {
        let tools = ScriptedTools::new()
            .answers("search", "42")
            .asks("pay", "paid");
        let agent = AgentLayer::new(tools.clone()).layer(ScriptedModel::new().text("ok"));
        let answer = run(&agent, ChatRequest::resume(state, Vec::new())).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert!(tools.calls().is_empty());
        let expected = match at {
            2 => ToolStatus::Done,
            _ => ToolStatus::Unknown,
        };
        assert_eq!(status_of(&answer, "search"), expected);
        if at > 0 {
            assert_eq!(status_of(&answer, "pay"), ToolStatus::Unknown);
        }
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_persisted_starts_no_tool() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model.clone());
    let fails = Checkpoint::new(|_| {
        Box::pin(async { Err(Error::new(ErrorKind::Server, "the disk is full")) })
    });
    let request = with(ChatRequest::user("hi"), fails);
    let context = request.context.clone();
    let body = agent.oneshot(request).await.unwrap().body;
    let mut items: Vec<_> = body.collect().await;
    let error = items.pop().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.effects()),
        (ErrorKind::Server, SideEffects::None)
    );
    assert!(tools.calls().is_empty());
    assert_eq!((context.effect_count(), model.calls()), (0, 1));
    let results: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Ok(Event::ToolResult(result)) => Some(result.outcome.status),
            _ => None,
        })
        .collect();
    assert_eq!(results, [ToolStatus::Cancelled]);
}

#[tokio::test]
async fn a_run_cancelled_while_persisting_starts_no_tool() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model);
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let never = Checkpoint::new(move |_| {
        context.cancel(CancelReason::User);
        Box::pin(std::future::pending())
    });
    let answer = run(&agent, with(request, never)).await;
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
    assert!(tools.calls().is_empty());
    // It is known that no call was executed.
    assert_eq!(status_of(&answer, "pay"), ToolStatus::Cancelled);
}

#[tokio::test]
async fn nested_runs_are_not_persisted_as_the_outer_run() {
    let saved = Saved::default();
    let within = ScriptedTools::new().answers("look", "seen");
    let looks = || {
        ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("it is")
    };
    // One in a tool, and one as the model.
    let asked = inner(looks(), &within);
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let helper = asked.clone();
        async move {
            let context = call.context.child().build();
            let request = ChatRequest::user("look").with_context(context);
            let answer = helper.oneshot(request).await.unwrap().text().await.unwrap();
            ToolOutcome::done(answer)
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model);
    run(
        &agent,
        with(ChatRequest::user("hi"), saved.checkpoint(&tools)),
    )
    .await;
    assert_eq!(saved.all().len(), 1);
    let open = saved.all()[0].0.open_round().unwrap();
    let (call, _) = open.calls().next().unwrap();
    assert_eq!(call.name, "ask");

    let saved = Saved::default();
    let outer = AgentLayer::new(ScriptedTools::new()).layer(inner(looks(), &within));
    run(
        &outer,
        with(ChatRequest::user("hi"), saved.checkpoint(&within)),
    )
    .await;
    // As the model, it is persisted within the run around it.
    assert_eq!(saved.all().len(), 1);
    assert!(saved.all()[0].0.open_round().is_none());
    assert_eq!(within.done(), 2);
}

#[tokio::test]
async fn a_finished_run_cannot_be_resumed() {
    let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("ok"));
    let ended = r#"{"version":1,"transcript":[],"step":1,"usage":{},"effects":"none","reason":null,
        "provider_reason":null,"stage":"ended"}"#;
    let state = RunState::from_json(ended.as_bytes(), 1 << 10).unwrap();
    assert!(Machine::restore(state.clone(), RunLimits::default()).is_ended());
    let refused = agent.oneshot(ChatRequest::resume(state, Vec::new())).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
}

// ---- agents as models ----

fn inner(model: ScriptedModel, tools: &ScriptedTools) -> Agent<ScriptedModel, ScriptedTools> {
    AgentLayer::new(tools.clone()).layer(model)
}

#[tokio::test]
async fn a_reply_reaches_the_inner_agent() {
    for reply in [Reply::approve as fn(InterruptId) -> Reply, |id| {
        Reply::deny(id, "no")
    }] {
        let tools = ScriptedTools::new().asks("pay", "paid");
        let model = ScriptedModel::new()
            .text("I will pay. ")
            .usage(Usage::new(10, 1))
            .tool_call("pay", json!({}))
            .then()
            .text("I have paid.")
            .usage(Usage::new(10, 1));
        let within = inner(model, &tools);
        let agent = AgentLayer::new(ScriptedTools::new()).layer(within);
        let agent = AgentLayer::new(ScriptedTools::new()).layer(agent);
        let first = run(&agent, ChatRequest::user("hi")).await;
        assert_eq!(first.finish.usage, Usage::new(10, 1));
        let mut state = state_of(&first);
        assert_eq!(state.interrupts().len(), 1);
        // Interrupts without a reply stay open.
        for _ in 0..3 {
            let again = run(&agent, ChatRequest::resume(written(&state), Vec::new())).await;
            assert_eq!(again.finish.usage, Usage::new(10, 1), "counted once");
            state = state_of(&again);
        }
        let approves = reply(InterruptId::new("i")) == Reply::approve(InterruptId::new("i"));
        let request = resume(&state, reply);
        let body = agent.clone().oneshot(request).await.unwrap().body;
        let (events, finish) = assert_finishes(body).await;
        assert_eq!(
            shape(&events),
            "resumed step_start tool_result text step_finish finish"
        );
        assert_eq!(tools.calls().len(), usize::from(approves));
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(finish.usage, Usage::new(20, 2), "counted once");
        // One message, with the call and its result, after the user's message.
        let transcript = finish.transcript.unwrap();
        assert_eq!(transcript.len(), 2);
        let message = transcript.last().unwrap().as_message();
        assert_eq!(message.text(), "I will pay. I have paid.");
        assert_eq!(message.tool_calls().count(), 1);
        let json = serde_json::to_string(&transcript).unwrap();
        assert_eq!(
            serde_json::from_str::<concentric_core::Transcript>(&json).unwrap(),
            transcript
        );
    }
}

#[tokio::test]
async fn a_persisted_inner_run_keeps_its_position_while_it_waits() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let pay = ScriptedModel::new().tool_call("pay", json!({}));
    let within = inner(
        pay.then().tool_call("pay", json!({})).then().text("Done."),
        &tools,
    );
    let agent = AgentLayer::new(ScriptedTools::new()).layer(within);
    let mut state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    // Another interrupt, at the same position in another message.
    let first = state.interrupts()[0].id.clone();
    state = state_of(&run(&agent, resume(&state, Reply::approve)).await);
    assert_ne!(state.interrupts()[0].id, first);
    let twice = ChatRequest::resume(state.clone(), vec![Reply::approve(first)]);
    let refused = agent.clone().oneshot(twice).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code()),
        (ErrorKind::InvalidRequest, Some("unknown_interrupt"))
    );
    let answer = run(&agent, resume(&state, Reply::approve)).await;
    assert_eq!(tools.calls().len(), 2);
    let transcript = answer.finish.transcript.unwrap();
    assert_eq!(transcript.len(), 2);
    let message = transcript.last().unwrap().as_message();
    let parts = message.parts.len();
    assert_eq!((message.tool_calls().count(), parts), (2, 5));
}

#[tokio::test]
async fn a_cancelled_inner_run_keeps_its_text() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new()
        .text("I will pay.")
        .tool_call("pay", json!({}));
    let agent = AgentLayer::new(ScriptedTools::new()).layer(inner(model, &tools));
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let request = resume(&state, Reply::approve);
    request.context.cancel(CancelReason::User);
    let answer = run(&agent, request).await;
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
    assert!(tools.calls().is_empty());
    let transcript = answer.finish.transcript.unwrap();
    assert_eq!(
        transcript.last().unwrap().as_message().text(),
        "I will pay."
    );
}

#[tokio::test]
async fn open_calls_of_an_inner_agent_are_closed_on_a_new_call() {
    // The inner agent has one open interrupt, one finished call and one call of an outer tool.
    let within = ScriptedTools::new()
        .asks("pay", "paid")
        .answers("look", "seen");
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("pay", json!({}))
        .tool_call("search", json!({}))
        .then()
        .text("ok");
    let around = ScriptedTools::new().answers("search", "42");
    let agent = AgentLayer::new(around.clone()).layer(inner(model, &within));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!((around.calls().len(), within.calls().len()), (1, 1));
    let results: Vec<_> = answer
        .message
        .parts
        .iter()
        .filter_map(|part| match &part.kind {
            concentric_core::PartKind::ToolResult(result) => {
                Some((result.name.as_str(), result.outcome.status))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        results,
        [
            ("look", ToolStatus::Done),
            ("pay", ToolStatus::Cancelled),
            ("search", ToolStatus::Done)
        ]
    );
}
