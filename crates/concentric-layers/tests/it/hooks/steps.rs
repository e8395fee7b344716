//! Changed requests, and the steps of a run.

use super::*;

// ---- requests ----

/// Adds a line to what the model is told, at a place.
pub(super) struct Line(pub(super) &'static str, pub(super) Phase);

impl Hooks for Line {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN | Interest::BEFORE_MODEL)
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        if self.1 == Phase::Run {
            request.system.push(SystemSegment::new(self.0));
        }
        Ok(Flow::Continue)
    }

    async fn before_model(&self, request: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        if self.1 == Phase::Model {
            request.system.push(SystemSegment::new(self.0));
        }
        Ok(Flow::Continue)
    }
}

/// A tool turn, then a text turn.
pub(super) fn two_steps() -> (ScriptedTools, ScriptedModel) {
    let tools = ScriptedTools::new().answers("t", "42");
    let model = ScriptedModel::new().tool_call("t", json!({}));
    (tools, model.then().text("It is 42."))
}

// C14, a change that is committed inside of the run for its later steps, is the next test; a run hook
// is outside of the loop, so its change is not a view.
#[tokio::test]
async fn c011_c013_lines_are_added_in_order_once_per_call_and_for_the_run() {
    let (tools, model) = two_steps();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Line("sticky", Phase::Run))))
        .layer(AgentLayer::new(tools))
        .layer(hooks::model(Arc::new(Line("a", Phase::Model))))
        .layer(hooks::model(Arc::new(Line("b", Phase::Model))))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    for request in model.requests() {
        assert_eq!(request.system.text(), "sticky\n\na\n\nb");
    }
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn c014_a_step_gate_commits_a_line_for_all_later_steps() {
    struct Commits;
    impl StepGate for Commits {
        fn name(&self) -> &str {
            "commits"
        }

        async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
            if draft.step == 1 {
                let segment = SystemSegment::new("committed");
                draft.system_mut().push(segment);
            }
            Ok(StepDecision::Continue)
        }
    }

    let tools = ScriptedTools::new().answers("t", "42");
    let model = ScriptedModel::new().tool_call("t", json!({}));
    let model = model
        .then()
        .tool_call("t", json!({}))
        .then()
        .text("It is 42.");
    let agent = AgentLayer::new(tools).gate(Commits);
    let agent =
        agent.layer(hooks::model(Arc::new(Line("view", Phase::Model))).layer(model.clone()));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let seen: Vec<_> = model.requests().iter().map(|it| it.system.text()).collect();
    assert_eq!(seen, ["view", "committed\n\nview", "committed\n\nview"]);
}

#[tokio::test]
async fn c012_tools_hidden_at_one_step_are_there_at_the_next() {
    struct Hides;
    impl Hooks for Hides {
        fn id(&self) -> &str {
            "hides"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_MODEL)
        }
        async fn before_model(
            &self,
            request: &mut ChatRequest,
        ) -> Result<Flow<Vec<Event>>, BoxError> {
            if request.context.step() == 0 {
                request.tools.retain(|spec| spec.name == "t");
            }
            Ok(Flow::Continue)
        }
    }
    let (tools, model) = two_steps();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.answers("u", "")))
        .layer(hooks::model(Arc::new(Hides)))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let offered = |at: usize| model.request(at).tools.len();
    assert_eq!((offered(0), offered(1)), (1, 2));
}

// ---- what they are told ----

/// Writes down what it is told of a run's course.
pub(super) struct Course(pub(super) Log);

impl Hooks for Course {
    fn id(&self) -> &str {
        "course"
    }

    fn interest(&self) -> Interest {
        used(
            Interest::STEP_STARTED
                | Interest::STEP_FINISHED
                | Interest::ROUND_FINISHED
                | Interest::AFTER_RUN,
        )
    }

    async fn step_started(&self, step: &StepStart, _: &Summary) -> Result<(), BoxError> {
        self.0.say(format!("step {} started", step.step));
        Ok(())
    }

    async fn step_finished(&self, step: &StepFinish, run: &Summary) -> Result<(), BoxError> {
        let (of_step, of_run) = (step.usage.input_tokens(), run.usage().input_tokens());
        self.0.say(format!(
            "step {} finished {of_step:?} {of_run:?}",
            step.step
        ));
        Ok(())
    }

    async fn round_finished(&self, results: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        let names: Vec<_> = results.iter().map(|r| r.name.as_str()).collect();
        self.0.say(format!("round finished {names:?}"));
        Ok(())
    }

    async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
        let message = run.message();
        let calls = message.tool_calls().count();
        self.0.say(format!(
            "{} {calls} {:?} {:?}",
            named(end),
            run.usage().input_tokens(),
            run.took()
        ));
        Ok(())
    }
}

#[tokio::test]
async fn a_run_is_told_of_step_by_step_and_summed_up() {
    let log = Log::default();
    let test = TestEnvironment::new();
    let clock = test.clone();
    let tools = ScriptedTools::new().tool("t", move |_| {
        clock.advance(Duration::from_secs(2));
        async { ToolOutcome::done("42") }
    });
    let model = ScriptedModel::new()
        .tool_call("t", json!({"a": 1}))
        .tool_call("t", json!({"a": 2}))
        .usage(Usage::new(10, 1))
        .then()
        .text("ok")
        .usage(Usage::new(20, 1));
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Course(log.clone()))))
        .service(works(tools, model));
    let answer = agent.oneshot(test.request("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take(),
        [
            "step 0 started",
            "step 0 finished Some(10) Some(10)",
            "round finished [\"t\", \"t\"]",
            "step 1 started",
            "step 1 finished Some(20) Some(30)",
            "finished 2 Some(30) 4s",
        ]
    );
}

#[tokio::test]
async fn a_round_that_closes_with_the_run_is_told_of_first() {
    let log = Log::default();
    let tools =
        ScriptedTools::new().tool("t", |_| async { ToolOutcome::done("").and_halt("enough") });
    let model = ScriptedModel::new().tool_call("t", json!({}));
    let agent = hooks::run(Arc::new(Course(log.clone()))).layer(works(tools, model));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let log = log.take();
    assert!(log[2].starts_with("round finished") && log[3].starts_with("halted enough"));
}

#[tokio::test]
async fn a_round_that_waited_is_told_of_whole() {
    let log = Log::default();
    let tools = ScriptedTools::new().answers("t", "").asks("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("t", json!({}))
        .tool_call("pay", json!({}));
    let agent =
        hooks::run(Arc::new(Course(log.clone()))).layer(works(tools, model.then().text("Done.")));
    let answer = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    let (_, finish) = assert_finishes(answer.body).await;
    assert!(!log.take().iter().any(|line| line.starts_with("round")));
    let state = *finish.state.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let answer = agent
        .oneshot(ChatRequest::resume(state, vec![reply]))
        .await
        .unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take()[..2],
        ["round finished [\"t\", \"pay\"]", "step 1 started"]
    );
}

#[tokio::test]
async fn a_step_hook_that_hangs_ends_when_the_run_is_cancelled_and_fails_nobody() {
    struct Step(Does);
    impl Hooks for Step {
        fn id(&self) -> &str {
            "step"
        }

        fn interest(&self) -> Interest {
            used(Interest::STEP_STARTED)
        }
        async fn step_started(&self, _: &StepStart, _: &Summary) -> Result<(), BoxError> {
            self.0.it().await
        }
    }
    for (does, outcome) in [
        (Does::Fails, Outcome::Completed),
        (Does::Panics, Outcome::Completed),
        (
            Does::Hangs,
            Outcome::Aborted {
                reason: CancelReason::User,
            },
        ),
    ] {
        let log = Log::default();
        let agent = ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Step(does))))
            .layer(log.on_run("b"))
            .service(talks(ScriptedModel::new().text("hi")));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        let context = request.context.clone();
        let answer = agent.oneshot(request).await.unwrap();
        let mut answer = task::spawn(answer.collect());
        if matches!(does, Does::Hangs) {
            assert_pending!(answer.poll());
            context.cancel(CancelReason::User);
            assert!(answer.is_woken());
        }
        assert_eq!(answer.await.unwrap().finish.outcome, outcome);
        let is_failed = usize::from(!matches!(does, Does::Hangs));
        assert_eq!(failed(&failures).len(), is_failed);
        assert_eq!(log.take().len(), 1);
    }
}
