//! Deferred work, and the rules of layers.

use super::{
    before::{AtStep, Before},
    steps::{Course, Line, two_steps},
    *,
};

// ---- deferred work ----

struct Defers<F>(F);

impl<F> Hooks for Defers<F>
where
    F: Fn(&Context) + Send + Sync + 'static,
{
    fn id(&self) -> &str {
        "defers"
    }

    fn interest(&self) -> Interest {
        used(Interest::EVENT)
    }

    fn event(&self, event: &Event, context: &Context) {
        if event.is_finish() {
            return;
        }
        (self.0)(context);
    }
}

#[tokio::test]
async fn c065_deferred_work_delays_no_event_and_comes_after_the_end() {
    let (log, gate) = (Log::default(), Gate::new());
    let (said, waits) = (log.clone(), gate.clone());
    let defers = Defers(move |context: &Context| {
        let (said, waits) = (said.clone(), waits.clone());
        context.defer(async move {
            waits.pass().await;
            said.say("deferred");
        });
    });
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(defers)))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let items = collect_events(answer.body).await;
    // One for each event but the last.
    let deferred = items.len() - 1;
    assert_eq!(log.take(), ["a finished"]);
    gate.reached_times(deferred).await;
    assert!(log.take().is_empty());
    gate.open();
    settle().await;
    assert_eq!(log.take().len(), deferred);
}

#[tokio::test]
async fn c066_deferred_work_that_never_ends_ends_no_run_late() {
    let log = Log::default();
    let defers = Defers(|context: &Context| context.defer(pending()));
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(defers)))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(log.take(), ["a finished"]);
}

#[tokio::test]
async fn c065_work_that_is_left_at_the_end_is_done_too() {
    struct Audit(Log);
    impl Hooks for Audit {
        fn id(&self) -> &str {
            "audit"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
            let (log, end) = (self.0.clone(), named(end));
            run.context().defer(async move { log.say(end) });
            Ok(())
        }
    }
    let log = Log::default();
    // A scripted model would keep the request, and so the run.
    let model = tower::service_fn(|_: ChatRequest| async {
        let finish = Event::finish(FinishReason::Stop, Usage::default());
        let body = futures_util::stream::iter([Ok(Event::text("hi")), Ok(finish)]);
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Audit(log.clone()))))
        .layer(AgentLayer::new(NoTools))
        .service(model);
    let answer = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    assert_finishes(answer.body).await;
    settle().await;
    assert_eq!(log.take(), ["finished"]);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    settle().await;
    assert_eq!(log.take(), ["dropped"]);
}

// ---- the layer ----

struct Nothing;

impl Hooks for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }

    fn interest(&self) -> Interest {
        Interest::NONE
    }
}

/// Each of its methods takes a tick; begins and ends are logged.
struct Slow(Log);

impl Slow {
    async fn tick<T>(&self, value: T) -> Result<T, BoxError> {
        Pace::NextTick.pass(&Context::new()).await;
        Ok(value)
    }
}

impl Hooks for Slow {
    fn id(&self) -> &str {
        "slow"
    }

    fn interest(&self) -> Interest {
        used(
            Interest::BEFORE_RUN
                | Interest::STEP_STARTED
                | Interest::STEP_FINISHED
                | Interest::ROUND_FINISHED
                | Interest::AFTER_RUN
                | Interest::BEFORE_STEP
                | Interest::BEFORE_ROUND
                | Interest::BEFORE_FINISH
                | Interest::BEFORE_MODEL
                | Interest::AFTER_MODEL
                | Interest::BEFORE_CALL
                | Interest::AFTER_CALL
                | Interest::CALL_CANCELLED,
        )
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.0.say("run begins");
        self.tick(Flow::Continue).await
    }

    async fn step_started(&self, _: &StepStart, _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn step_finished(&self, _: &StepFinish, _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn round_finished(&self, _: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.0.say("run ends");
        self.tick(()).await
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.tick(StepDecision::Continue).await
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        self.tick(RoundDecision::Continue).await
    }

    async fn before_finish(&self, _: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        self.tick(FinishDecision::Finish).await
    }

    async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        self.0.say("call begins");
        self.tick(Flow::Continue).await
    }

    async fn after_model(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.0.say("call ends");
        self.tick(()).await
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.0.say("tool begins");
        self.tick(Flow::Continue).await
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.0.say("tool ends");
        self.tick(None).await
    }

    fn call_cancelled(&self, _: &ToolCall) {
        self.0.say("tool ends");
    }
}

/// An agent with two steps, whose hooks, model and tool all take ticks.
fn slow(log: &Log, model: ScriptedModel) -> BoxModel {
    let slow = Arc::new(Slow(log.clone()));
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async {
            tokio::task::yield_now().await;
            "2 rows"
        }))
        .hooks(hooks::tool(Arc::clone(&slow)));
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::clone(&slow)))
        .layer(AgentLayer::new(tools).gate(hooks::step_gate(Arc::clone(&slow))))
        .layer(hooks::model(slow))
        .service(model);
    BoxModel::new(agent)
}

fn slow_model() -> ScriptedModel {
    two_steps().1.paced(Pace::NextTick)
}

#[test]
fn hooks_that_take_time_are_all_called_without_a_wake() {
    let (logged, text) = watched(async {
        let log = Log::default();
        let call = slow(&log, slow_model()).oneshot(ChatRequest::user("hi"));
        let answer = Spurious::new(call).await.unwrap();
        let answer = answer.map_body(Spurious::new).collect().await.unwrap();
        (log.take(), answer.text())
    });
    assert_eq!(text, "It is 42.");
    let calls = ["call begins", "call ends"];
    let tool = ["tool begins", "tool ends"];
    let expected = [&["run begins"][..], &calls, &tool, &calls, &["run ends"]];
    assert_eq!(logged, expected.concat());
}

#[tokio::test]
async fn dropped_wherever_they_wait_hooks_see_each_end_once() {
    let scene = RefCell::new(None);
    let run = || {
        let (log, model) = (Log::default(), slow_model());
        let agent = slow(&log, model.clone());
        *scene.borrow_mut() = Some((log, model));
        async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await }
    };
    let drops = drop_at_each_wait(run, async |polls| {
        settle().await;
        let (log, model) = scene.take().unwrap();
        let logged = log.take();
        let count = |line: &str| logged.iter().filter(|it| *it == line).count();
        for what in ["run", "call", "tool"] {
            let (begun, ended) = (
                count(&format!("{what} begins")),
                count(&format!("{what} ends")),
            );
            assert_eq!(begun, ended, "{polls}: {logged:?}");
        }
        assert_eq!(model.live(), 0, "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 15, "{drops}");
}

#[tokio::test(start_paused = true)]
async fn hooks_keep_the_rules_of_layers() {
    check_layer(hooks::run(Arc::new(Slow(Log::default())))).await;
    check_layer(hooks::model(Arc::new(Slow(Log::default())))).await;

    check_layer(hooks::run(Arc::new(Nothing))).await;
    check_layer(hooks::model(Arc::new(Nothing))).await;
    check_layer(hooks::run(Arc::new(Course(Log::default())))).await;
    check_layer(hooks::run(Arc::new(Before("a", None, Log::default())))).await;
    check_layer(hooks::model(Arc::new(Line("a", Phase::Model)))).await;
}

#[tokio::test]
async fn a_hook_without_a_before_hands_on_readiness() {
    let model = ScriptedModel::new().unready(broken());
    let mut service = hooks::run(Arc::new(Nothing)).layer(model.clone());
    assert_eq!(service.ready().await.err().unwrap().code(), Some("E7"));
    // One that may answer itself is always ready.
    let mut service =
        hooks::model(Arc::new(AtStep(0, Flow::Answer(vec![Event::text("hi")])))).layer(model);
    let call = service.ready().await.unwrap().call(ChatRequest::user("hi"));
    assert_eq!(call.await.unwrap().text().await.unwrap(), "hi");
}

#[test]
fn a_long_stack_of_hooks_is_send_and_static() {
    fn check<S>(_: S)
    where
        S: ModelService<Body: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
    }
    let layers = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Nothing)))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(hooks::run(Arc::new(Before("a", None, Log::default()))))
        .layer(hooks::run(Arc::new(Before("b", None, Log::default()))))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(AgentLayer::new(NoTools))
        .layer(hooks::model(Arc::new(Line("a", Phase::Model))))
        .layer(hooks::model(Arc::new(Line("b", Phase::Model))));
    check(layers.service(ScriptedModel::new()));
}
