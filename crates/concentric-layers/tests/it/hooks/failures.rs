//! Hooks that fail, hang or panic.

use super::*;

/// Does something in `after_run`.
struct After(&'static str, Does);

impl Hooks for After {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::AFTER_RUN)
    }

    async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.1.it().await
    }
}

#[tokio::test]
async fn c062_observers_that_fail_leave_the_others_alone_and_are_reported_together() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("first", Does::Fails))))
        .layer(hooks::run(Arc::new(After("second", Does::Panics))))
        .layer(log.on_run("b"))
        .service(talks(ScriptedModel::new().text("hi")));
    let (request, failures) = with_failures(ChatRequest::user("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    let (_, finish) = assert_finishes(answer.body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(log.take(), ["b finished", "a finished"]);
    assert_eq!(
        failed(&failures),
        ["second.after_run: panicked: oh", "first.after_run: no"]
    );
}

#[tokio::test]
async fn c063_an_observer_that_fails_changes_no_other_end_either() {
    for does in [Does::Fails, Does::Panics] {
        // Failed, as a future and as a body.
        for model in [
            ScriptedModel::new().error(broken()),
            ScriptedModel::new().text("hi").error(broken()),
        ] {
            let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
            let (request, failures) = with_failures(ChatRequest::user("hi"));
            let error = match agent.oneshot(request).await {
                Ok(answer) => assert_fails(answer.body).await.1,
                Err(error) => error,
            };
            assert_eq!(error.code(), Some("E7"));
            assert_eq!(failed(&failures).len(), 1);
        }
        // Aborted.
        let model = ScriptedModel::new().text("hi").never();
        let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        let context = request.context.clone();
        let answer = agent.oneshot(request).await.unwrap();
        context.cancel(CancelReason::User);
        let (_, finish) = assert_finishes(answer.body).await;
        assert!(matches!(finish.outcome, Outcome::Aborted { .. }));
        assert_eq!(failed(&failures).len(), 1);
        // Dropped.
        let model = ScriptedModel::new().text("hi").never();
        let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        drop(agent.oneshot(request).await.unwrap());
        assert_eq!(failed(&failures).len(), 1);
    }
}

#[tokio::test]
async fn c063_an_observer_that_hangs_is_given_up() {
    let test = TestEnvironment::new();
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("h", Does::Hangs))))
        .service(talks(ScriptedModel::new().text("hi")));
    let (request, failures) = with_failures(test.request("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    let mut answer = task::spawn(answer.collect());
    assert_pending!(answer.poll());
    test.advance(Duration::from_secs(29));
    assert_pending!(answer.poll());
    test.advance(Duration::from_secs(1));
    assert!(answer.is_woken());
    assert_eq!(answer.await.unwrap().text(), "hi");
    assert_eq!(log.take(), ["a finished"]);
    assert_eq!(
        failed(&failures),
        ["h.after_run: the method did not return within its time limit"]
    );
}

#[tokio::test]
async fn c064_an_after_call_that_fails_leaves_one_result_which_is_the_tools() {
    struct AfterCall(Does);
    impl Hooks for AfterCall {
        fn id(&self) -> &str {
            "after_call"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_CALL)
        }
        async fn after_call(
            &self,
            _: &ToolCall,
            _: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            self.0.it().await
        }
    }
    for does in [Does::Fails, Does::Panics] {
        let tools = Toolset::new()
            .tool(tool("t", "", |NoArguments {}| async { "2 rows" }))
            .hooks(hooks::tool(Arc::new(AfterCall(does))));
        let model = ScriptedModel::new()
            .tool_call("t", json!({}))
            .then()
            .text("ok");
        let agent = AgentLayer::new(tools).layer(model);
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let (events, _) = assert_finishes(answer.body).await;
        let results: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::ToolResult(result) => Some(result.outcome.status),
                _ => None,
            })
            .collect();
        assert_eq!(results, [ToolStatus::Done]);
    }
}

#[tokio::test]
async fn c068_an_after_hook_whose_consumer_leaves_goes_on_and_so_do_the_others() {
    struct Slow(Gate, Log);
    impl Hooks for Slow {
        fn id(&self) -> &str {
            "slow"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
            self.0.pass().await;
            self.1.say(format!("slow {}", named(end)));
            Ok(())
        }
    }
    let (log, gate) = (Log::default(), Gate::new());
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(Slow(gate.clone(), log.clone()))))
        .layer(log.on_run("b"))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let mut answer = task::spawn(answer.collect());
    assert_pending!(answer.poll());
    assert_eq!(log.take(), ["b finished"]);
    drop(answer);
    // Both are told of the same end.
    assert_eq!(log.take(), ["a finished"]);
    gate.open();
    settle().await;
    assert_eq!(log.take(), ["slow finished"]);
}

#[tokio::test]
async fn a_dropped_run_is_told_of_by_hooks_that_wait_too() {
    struct Writes(Log);
    impl Hooks for Writes {
        fn id(&self) -> &str {
            "writes"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
            tokio::task::yield_now().await;
            self.0.say(named(end));
            Ok(())
        }
    }
    let log = Log::default();
    let model = ScriptedModel::new().text("hi").never();
    let agent = hooks::run(Arc::new(Writes(log.clone()))).layer(talks(model));
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    settle().await;
    assert_eq!(log.take(), ["dropped"]);
}

#[test]
fn a_drop_without_a_runtime_is_told_to_hooks_that_do_not_wait() {
    let log = Log::default();
    let model = ScriptedModel::new().text("hi").never();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("h", Does::Hangs))))
        .service(talks(model));
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    let answer = tokio_test::assert_ready_ok!(call.poll());
    drop(answer);
    assert_eq!(log.take(), ["a dropped"]);
}

#[tokio::test]
async fn an_event_that_makes_a_hook_panic_is_its_last() {
    struct Panics;
    impl Hooks for Panics {
        fn id(&self) -> &str {
            "panics"
        }

        fn interest(&self) -> Interest {
            used(Interest::EVENT)
        }
        fn event(&self, _: &Event, _: &Context) {
            panic!("oh");
        }
    }
    let agent = hooks::run(Arc::new(Panics)).layer(talks(ScriptedModel::new().deltas(["a", "b"])));
    let (request, failures) = with_failures(ChatRequest::user("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "ab");
    assert_eq!(failed(&failures), ["panics.event: panicked: oh"]);
}
