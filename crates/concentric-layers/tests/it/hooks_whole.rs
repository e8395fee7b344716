//! [`Hooks`] that an agent, a run or a session takes whole.

use super::used;
use concentric_core::hooks::{self, BeforeCall, End, Flow, HookFailures, Hooks, Interest, Summary};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Context, Error, ErrorKind, Event, Outcome, Reply,
    RunOverrides, Str, ThreadId, ToolCall, ToolOutcome, ToolStatus, Transcript,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepView},
};
use concentric_layers::session::{MakeSession, SessionTarget};
use concentric_layers::{Next, from_fn};
use concentric_test::{ScriptedModel, ScriptedTools, assert_finishes};
use concentric_tools::{Approval, NoArguments, Toolset, tool, tool_with_context};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, ServiceBuilder, ServiceExt};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Writes down which of its methods are called.
struct Everywhere(&'static str, Log);

impl Everywhere {
    fn at(&self, place: &str) {
        self.1.say(format!("{} {place}", self.0));
    }
}

impl Hooks for Everywhere {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(
            Interest::BEFORE_RUN
                | Interest::BEFORE_STEP
                | Interest::BEFORE_ROUND
                | Interest::BEFORE_FINISH
                | Interest::BEFORE_MODEL
                | Interest::BEFORE_CALL
                | Interest::SESSION_STARTED
                | Interest::SESSION_ENDED,
        )
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.at("run");
        Ok(Flow::Continue)
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.at(&format!("step {}", step.step));
        Ok(StepDecision::Continue)
    }

    async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        self.at("model");
        Ok(Flow::Continue)
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        self.at("round");
        Ok(RoundDecision::Continue)
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.at("call");
        Ok(Flow::Continue)
    }

    async fn before_finish(&self, _: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        self.at("finish");
        Ok(FinishDecision::Finish)
    }

    async fn session_started(&self, thread: &ThreadId, _: &Transcript) -> Result<(), BoxError> {
        self.at("session");
        match thread.as_str() {
            "refused" if self.0 == "b" => Err("not you".into()),
            _ => Ok(()),
        }
    }

    fn session_ended(&self, _: &ThreadId, history: &Transcript) {
        self.at(&format!("ends at {}", history.len()));
    }
}

fn looks() -> (ScriptedModel, Toolset) {
    let model = ScriptedModel::new().tool_call("look", json!({})).then();
    let look = tool("look", "", |NoArguments {}| async { "seen" });
    (model.text("It is there."), Toolset::new().tool(look))
}

#[tokio::test]
async fn hooks_as_a_plugin_are_at_every_place_the_first_outermost() {
    let (model, tools) = looks();
    let log = Log::default();
    let agent = AgentLayer::new(tools)
        .with(Everywhere("a", log.clone()))
        .with(Everywhere("b", log.clone()))
        .layer(model);
    assert_finishes(agent.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
    let places = [
        "run", "step 0", "model", "round", "call", "step 1", "model", "finish",
    ];
    let all = places.map(|place| [format!("a {place}"), format!("b {place}")]);
    assert_eq!(log.take(), all.concat());
}

#[tokio::test]
async fn c004_hooks_that_are_attached_to_one_run_are_outside_those_of_the_agent() {
    let (model, tools) = looks();
    // For another run.
    let model = model.then().tool_call("look", json!({})).then();
    let model = model.text("It is still there.");
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(
            AgentLayer::new(tools)
                .gate(hooks::step_gate(Arc::new(Everywhere("agent", log.clone()))))
                .boxed(),
        )
        .layer(hooks::model(Arc::new(Everywhere("agent", log.clone()))))
        .service(model);
    let own = Arc::new(Everywhere("own", log.clone()));
    let inner = Everywhere("inner", log.clone());
    let overrides = RunOverrides::new().hooks(Arc::clone(&own)).hooks(inner);
    let request = ChatRequest::user("hi").with_overrides(overrides);
    let run = hooks::run(own).layer(agent.clone());
    assert_finishes(run.oneshot(request).await.unwrap().body).await;
    let seen = log.take();
    for place in ["step 0", "model", "round", "step 1", "finish"] {
        let at = |who: &str| {
            seen.iter()
                .position(|line| *line == format!("{who} {place}"))
        };
        assert!(
            at("own") < at("inner") && at("inner") < at("agent"),
            "{place}: {seen:?}"
        );
        assert!(at("own").is_some());
    }
    assert_eq!(seen.iter().filter(|line| line.ends_with("call")).count(), 2);

    // Another run has none of it.
    assert_finishes(agent.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
    let seen = log.take();
    assert!(
        seen.iter().all(|line| line.starts_with("agent")),
        "{seen:?}"
    );
    assert!(!seen.is_empty());
}

fn looker() -> BoxModel {
    let (model, tools) = looks();
    AgentLayer::new(tools).boxed().layer(model)
}

/// Asks such an agent, in a run inside that of `context`.
fn ask_another(context: &Context) -> impl Future<Output = Result<String, Error>> + Send + use<> {
    let request = ChatRequest::user("?").with_context(context.child().build());
    async { looker().oneshot(request).await?.text().await }
}

#[tokio::test]
async fn hooks_that_are_attached_to_one_run_are_not_those_of_a_run_that_is_made_inside_it() {
    let ask = tool_with_context("ask", "", |NoArguments {}, context: Context| {
        ask_another(&context)
    });
    let model = ScriptedModel::new().tool_call("ask", json!({})).then();
    let agent = ServiceBuilder::new()
        .layer(from_fn(async |request: ChatRequest, mut next: Next| {
            ask_another(&request.context).await?;
            next.run(request).await
        }))
        .layer(AgentLayer::new(Toolset::new().tool(ask)).boxed())
        .service(model.text("It is there."));
    let log = Log::default();
    let own = RunOverrides::new().hooks(Everywhere("own", log.clone()));
    let request = ChatRequest::user("hi").with_overrides(own);
    assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    let places = [
        "step 0", "model", "round", "call", "step 1", "model", "finish",
    ];
    assert_eq!(log.take(), places.map(|place| format!("own {place}")));
}

#[tokio::test]
async fn an_agent_in_the_models_place_does_not_take_the_layers_of_the_run() {
    let log = Log::default();
    let request = || {
        let own = RunOverrides::new().hooks(Everywhere("own", log.clone()));
        ChatRequest::user("hi").with_overrides(own)
    };
    let agent = AgentLayer::new(Toolset::new()).boxed().layer(looker());
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    // Its tools are the run's.
    let places = ["step 0", "model", "call", "finish"];
    assert_eq!(log.take(), places.map(|place| format!("own {place}")));

    // The run's own loop has no place for them.
    let agent = AgentLayer::new(Toolset::new()).layer(looker());
    let error = agent.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("Everywhere"), "{error}");
    assert!(error.message().contains("boxed"), "{error}");
    assert!(log.take().is_empty());
}

#[tokio::test]
async fn a_session_tells_hooks_of_its_start_and_its_end_in_reverse() {
    let log = Log::default();
    let model = ScriptedModel::new().text("hi").repeat();
    let sessions = MakeSession::new(AgentLayer::new(Toolset::new()).layer(model))
        .hooks(Arc::new(Everywhere("a", log.clone())))
        .hooks(Arc::new(Everywhere("b", log.clone())))
        .hooks(Arc::new(Everywhere("c", log.clone())));
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = sessions.clone().oneshot(target).await.unwrap();
    let turn = session.clone().oneshot(session.user("hi")).await.unwrap();
    turn.collect().await.unwrap();
    session.close();
    drop(session);
    assert_eq!(
        log.take(),
        [
            "a session",
            "b session",
            "c session",
            "c ends at 2",
            "b ends at 2",
            "a ends at 2"
        ]
    );

    // Those that were told of the start are told of the end.
    let refused = sessions
        .oneshot(SessionTarget::new(ThreadId::new("refused")))
        .await;
    assert_eq!(refused.unwrap_err().message(), "not you");
    assert_eq!(
        log.take(),
        ["a session", "b session", "b ends at 0", "a ends at 0"]
    );
}

#[tokio::test]
async fn after_run_reads_the_question_the_calls_and_the_answer() {
    type Turn = (Option<String>, Vec<String>, String);
    struct Memory(Arc<Mutex<Vec<Turn>>>);

    impl Hooks for Memory {
        fn id(&self) -> &str {
            "memory"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }

        async fn after_run(&self, _: End<'_>, run: &Summary) -> Result<(), BoxError> {
            let calls = run.tool_calls();
            let calls = calls.iter().map(|call| call.name.to_string());
            let asked = run.user_message().map(|message| message.text());
            let turn = (asked, calls.collect(), run.text());
            self.0.lock().unwrap().push(turn);
            Ok(())
        }
    }

    let turns = Arc::default();
    let model = ScriptedModel::new().text("I look.");
    let model = model
        .tool_call("look", json!({}))
        .tool_call("look", json!({}));
    let model = model.then().text("It is 42.").then().text("");
    let tools = ScriptedTools::new().answers("look", "42");
    let agent = AgentLayer::new(tools).layer(model);
    let agent = hooks::run(Arc::new(Memory(Arc::clone(&turns)))).layer(agent);
    let mut history = concentric_core::Transcript::new();
    history.push_user("Old.");
    history.push_user("And now?");
    for request in [
        ChatRequest::new(history),
        ChatRequest::new(Default::default()),
    ] {
        let answer = agent.clone().oneshot(request).await.unwrap();
        assert_finishes(answer.body).await;
    }
    let looked = vec!["look".to_owned(); 2];
    let first = (Some("And now?".to_owned()), looked, "It is 42.".to_owned());
    assert_eq!(
        *turns.lock().unwrap(),
        [first, (None, Vec::new(), String::new())]
    );
}

#[tokio::test]
async fn c065_work_that_after_run_leaves_for_later_is_done_while_handles_are_still_there() {
    struct Later(tokio::sync::mpsc::UnboundedSender<usize>);

    impl Hooks for Later {
        fn id(&self) -> &str {
            "later"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }

        async fn after_run(&self, _: End<'_>, run: &Summary) -> Result<(), BoxError> {
            let (done, parts) = (self.0.clone(), run.message().parts.len());
            run.context().defer(async move {
                let _ = done.send(parts);
            });
            Ok(())
        }
    }

    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    let agent = hooks::run(Arc::new(Later(sender)))
        .layer(AgentLayer::new(Toolset::new()).layer(ScriptedModel::new().text("hi")));
    let request = ChatRequest::user("hi");
    let handle = request.context.clone();
    assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    assert_eq!(done.recv().await, Some(1));
    drop(handle);
}

/// Fails around each tool call, in one of several ways.
struct Failing(&'static str);

impl Hooks for Failing {
    fn id(&self) -> &str {
        "failing"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        match self.0 {
            "before fails" => Err("no".into()),
            "before panics" => panic!("no"),
            "before halts" => Err(Error::halted("enough").into()),
            _ => Ok(Flow::Continue),
        }
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        match self.0 {
            "after fails" => Err("no".into()),
            "after panics" => panic!("no"),
            _ => Ok(None),
        }
    }
}

#[tokio::test]
async fn c064_no_failure_around_a_tool_call_is_lost() {
    let cases = [
        (
            "before fails",
            Some(("before_call", "no")),
            ToolStatus::Failed,
        ),
        (
            "before panics",
            Some(("before_call", "panicked: no")),
            ToolStatus::Failed,
        ),
        ("after fails", Some(("after_call", "no")), ToolStatus::Done),
        (
            "after panics",
            Some(("after_call", "panicked: no")),
            ToolStatus::Done,
        ),
        ("before halts", None, ToolStatus::Failed),
    ];
    for (how, failed, status) in cases {
        let (model, tools) = looks();
        let agent = AgentLayer::new(tools).with(Failing(how)).layer(model);
        let failures = HookFailures::new();
        let mut request = ChatRequest::user("hi");
        request.context.extensions_mut().insert(failures.clone());
        let answer = agent
            .oneshot(request)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        let seen: Vec<_> = failures.take();
        let seen: Vec<_> = seen.iter().map(|f| (f.method, f.error.message())).collect();
        assert_eq!(seen, failed.into_iter().collect::<Vec<_>>(), "{how}");
        let turns = answer.transcript().unwrap().iter();
        let results: Vec<_> = turns.flat_map(|turn| turn.results().iter()).collect();
        assert_eq!(results.len(), 1);
        assert_eq!(results.first().unwrap().outcome.status, status, "{how}");
        let outcome = match how {
            "before halts" => Outcome::Halted {
                reason: "enough".into(),
            },
            _ => Outcome::Completed,
        };
        assert_eq!(answer.finish.outcome, outcome, "{how}");
    }
}

/// Records what it is called for, and fails in one of several ways.
struct Journal(&'static str, Log);

impl Journal {
    async fn at(&self, place: &str) -> Result<(), BoxError> {
        self.1.say(place);
        match self.0 {
            "fails" => Err("no".into()),
            "panics" => panic!("no"),
            _ => Ok(()),
        }
    }
}

impl Hooks for Journal {
    fn id(&self) -> &str {
        "journal"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_CALL | Interest::AFTER_CALL | Interest::BEFORE_STEP)
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.1.say(format!("step {}", step.step));
        Ok(StepDecision::Continue)
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.1.say(format!("before {}", call.name()));
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.at(&format!("after {}", call.name())).await?;
        Ok(None)
    }
}

// Case F050; that hooks that hang end with the run is in `hooks`.
#[tokio::test]
async fn f050_hooks_are_called_once_per_position_over_a_suspension_however_they_end() {
    for how in ["returns", "fails", "panics"] {
        let log = Log::default();
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
            .text("Done.");
        let (by_look, by_pay) = (log.clone(), log.clone());
        let look = tool("look", "", move |NoArguments {}| {
            by_look.say("look runs");
            async { "seen" }
        });
        let pay = tool("pay", "", move |NoArguments {}| {
            by_pay.say("pay runs");
            async { "paid" }
        });
        let tools = Toolset::new()
            .tool(look)
            .tool(pay)
            .gate(Approval::for_tools(["pay"]));
        let agent = AgentLayer::new(tools)
            .with(Journal(how, log.clone()))
            .layer(model.clone());
        let answer = agent.clone().oneshot(ChatRequest::user("hi")).await;
        let finish = answer.unwrap().collect().await.unwrap().finish;
        assert_eq!(finish.outcome, Outcome::Interrupted, "{how}");
        let round = ["before look", "look runs", "after look"];
        let first = [&["step 0"], &round[..], &["step 1"]].concat();
        assert_eq!(log.take(), first, "{how}");

        let state = *finish.state.unwrap();
        let reply = Reply::approve(state.interrupts()[0].id.clone());
        let answer = agent.oneshot(ChatRequest::resume(state, vec![reply])).await;
        let finish = answer.unwrap().collect().await.unwrap().finish;
        assert_eq!(finish.outcome, Outcome::Completed, "{how}");
        // Nothing that was before the suspension is repeated.
        let second = ["before pay", "pay runs", "after pay", "step 2"];
        assert_eq!(log.take(), second, "{how}");
        assert_eq!(model.calls(), 3, "{how}");
    }
}
