//! Hooks that decide before a run or a model call.

use super::*;

/// Writes down when it is called; may do something before a run.
pub(super) struct Before(
    pub(super) &'static str,
    pub(super) Option<Does>,
    pub(super) Log,
);

impl Hooks for Before {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN | Interest::AFTER_RUN)
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.2.say(format!("{} before", self.0));
        match self.1 {
            Some(does) => does.it().await,
            None => Ok(Flow::Continue),
        }
    }

    async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.2.say(format!("{} {}", self.0, named(end)));
        Ok(())
    }
}

#[tokio::test]
async fn c003_before_in_the_order_added_and_after_in_reverse() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Before("a", None, log.clone()))))
        .layer(hooks::run(Arc::new(Before("b", None, log.clone()))))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take(),
        ["a before", "b before", "b finished", "a finished"]
    );
}

#[tokio::test]
async fn c004_the_hooks_of_one_run_are_outside_those_of_the_agent() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Before("agent", None, log.clone()))))
        .service(talks(ScriptedModel::new().text("hi")));
    let run = hooks::run(Arc::new(Before("run", None, log.clone()))).layer(agent);
    assert_finishes(run.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "run before",
            "agent before",
            "agent finished",
            "run finished"
        ]
    );
}

#[tokio::test]
async fn c010_a_before_that_fails_stops_those_inside_and_those_entered_get_their_end() {
    for (does, end) in [
        (Does::Fails, "failed permission E403"),
        (Does::Panics, "failed other"),
    ] {
        let log = Log::default();
        let model = ScriptedModel::new().text("hi");
        let agent = ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Before("a", None, log.clone()))))
            .layer(hooks::run(Arc::new(Before("b", Some(does), log.clone()))))
            .layer(hooks::run(Arc::new(Before("c", None, log.clone()))))
            .service(talks(model.clone()));
        let error = agent.oneshot(ChatRequest::user("hi")).await.err().unwrap();
        assert_eq!(error.phase(), Some(Phase::Run));
        assert_eq!(
            log.take(),
            [
                "a before".to_owned(),
                "b before".to_owned(),
                format!("b {end}"),
                format!("a {end}")
            ]
        );
        assert_eq!(model.calls(), 0);
    }
}

#[tokio::test]
async fn a_before_that_hangs_ends_when_the_run_is_to_stop() {
    // Cancelled.
    let log = Log::default();
    let model = ScriptedModel::new().text("hi");
    let layer = hooks::run(Arc::new(Before("h", Some(Does::Hangs), log.clone())));
    let agent = layer.layer(talks(model.clone()));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut call = task::spawn(agent.clone().oneshot(request));
    assert_pending!(call.poll());
    context.cancel(CancelReason::User);
    assert!(call.is_woken());
    let (_, finish) = assert_finishes(call.await.unwrap().body).await;
    assert_eq!(finish.transcript.unwrap().len(), 1);
    assert_eq!(log.take(), ["h before", "h aborted User"]);

    // Late.
    let test = TestEnvironment::new();
    let deadline = test.context().now() + Duration::from_secs(5);
    let context = test.context_builder().deadline(deadline).build();
    let request = ChatRequest::user("hi").with_context(context);
    let mut call = task::spawn(agent.clone().oneshot(request));
    assert_pending!(call.poll());
    test.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    assert_eq!(call.await.err().unwrap().kind(), ErrorKind::Timeout);
    assert_eq!(log.take(), ["h before", "h failed timeout"]);

    // Dropped.
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    assert_pending!(call.poll());
    drop(call);
    assert_eq!(log.take(), ["h before", "h dropped"]);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_hook_answers_or_halts_in_the_place_of_what_is_inside() {
    struct Says(Flow<Str>);
    impl Hooks for Says {
        fn id(&self) -> &str {
            "says"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_RUN)
        }
        async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
            Ok(self.0.clone())
        }
    }
    for (flow, end, turns) in [
        (Flow::answer("From the cache."), "finished", 2),
        (Flow::halt("closed"), "halted closed", 1),
    ] {
        let log = Log::default();
        let model = ScriptedModel::new().text("hi");
        let agent = ServiceBuilder::new()
            .layer(log.on_run("a"))
            .layer(hooks::run(Arc::new(Says(flow))))
            .service(talks(model.clone()));
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.transcript().unwrap().len(), turns);
        assert_eq!(log.take(), [format!("a {end}")]);
        assert_eq!(model.calls(), 0);
    }
}

/// Ends each run that goes on.
struct OnReply(Flow<Str>);

impl Hooks for OnReply {
    fn id(&self) -> &str {
        "on_reply"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN)
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        Ok(match request.resume {
            Some(_) => self.0.clone(),
            None => Flow::Continue,
        })
    }
}

#[tokio::test]
async fn a_run_that_goes_on_is_closed_if_a_hook_answers_or_halts_in_its_place() {
    let halted = Outcome::Halted {
        reason: "closed".into(),
    };
    for (flow, outcome, said) in [
        (Flow::halt("closed"), halted, ""),
        (Flow::answer("Closed."), Outcome::Completed, "Closed."),
    ] {
        // One call is done and paid for, and the other one waits.
        let tools = ScriptedTools::new()
            .answers("search", "42")
            .asks("pay", "paid");
        let model = ScriptedModel::new()
            .tool_call("search", json!({}))
            .tool_call("pay", json!({}))
            .usage(Usage::new(3, 2));
        let agent = hooks::run(Arc::new(OnReply(flow))).layer(works(tools.clone(), model));
        let answer = agent.clone().oneshot(ChatRequest::user("hi")).await;
        let state = *answer
            .unwrap()
            .collect()
            .await
            .unwrap()
            .finish
            .state
            .unwrap();
        let reply = Reply::approve(state.interrupts()[0].id.clone());
        let request = ChatRequest::resume(state, vec![reply]);

        let again = request.clone();
        let answer = agent.clone().oneshot(request).await.unwrap();
        let (events, finish) = assert_finishes(answer.body).await;
        assert_eq!((finish.outcome, tools.done()), (outcome, 1));
        assert_eq!(finish.usage, Usage::new(3, 2));
        let results = events.iter().filter_map(|event| match event {
            Event::ToolResult(result) => Some((result.name.as_str(), result.outcome.status)),
            _ => None,
        });
        assert_eq!(
            results.collect::<Vec<_>>(),
            [("search", ToolStatus::Done), ("pay", ToolStatus::Cancelled)]
        );
        let transcript = finish.transcript.unwrap();
        assert_eq!(transcript.len(), 2 + usize::from(!said.is_empty()));
        let text = |event: &Event| matches!(event, Event::TextDelta(text) if *text == *said);
        assert_eq!(events.iter().any(text), !said.is_empty());

        // It is taken, for whoever else would go on with it.
        let error = agent.oneshot(again).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
}

#[tokio::test]
async fn a_hook_that_ends_a_run_that_goes_on_checks_the_replies_as_the_agent_does() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let agent = hooks::run(Arc::new(OnReply(Flow::halt("closed")))).layer(works(tools, model));
    let answer = agent.clone().oneshot(ChatRequest::user("hi")).await;
    let state = *answer
        .unwrap()
        .collect()
        .await
        .unwrap()
        .finish
        .state
        .unwrap();
    let wrong = vec![Reply::approve(InterruptId::new("?"))];
    let error = agent.oneshot(ChatRequest::resume(state, wrong)).await;
    assert_eq!(error.err().unwrap().code(), Some("unknown_interrupt"));
}

#[tokio::test]
async fn a_claimed_round_is_closed_if_a_hook_halts_in_the_place_of_what_is_inside() {
    let mut history = Transcript::new();
    history.push_user("hi");
    let call = ToolCallPart::new(CallId::new("c"), "pay", json!({}));
    let part = Part::new(PartKind::ToolCall(call));
    let open = OpenRound::new(Message::new(Role::Assistant, vec![part])).unwrap();
    let request = ChatRequest::resume_history(history, open, Vec::new());
    let agent = hooks::run(Arc::new(OnReply(Flow::halt("closed"))))
        .layer(talks(ScriptedModel::new().text("hi")));
    let answer = agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.transcript().unwrap().len(), 2);
}

/// Does something before the model call of a step.
pub(super) struct AtStep(pub(super) u32, pub(super) Flow<Vec<Event>>);

impl Hooks for AtStep {
    fn id(&self) -> &str {
        "at_step"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_MODEL)
    }

    async fn before_model(&self, request: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        Ok(match request.context.step() == self.0 {
            true => self.1.clone(),
            false => Flow::Continue,
        })
    }
}

#[tokio::test]
async fn s010_a_model_call_is_answered_or_the_run_halted_before_it() {
    for (flow, end, said) in [
        (
            Flow::Answer(vec![Event::text("From the cache.")]),
            "finished",
            "From the cache.",
        ),
        (Flow::halt("too dear"), "halted too dear", ""),
    ] {
        let log = Log::default();
        let tools = ScriptedTools::new().answers("t", "42");
        let model = ScriptedModel::new().tool_call("t", json!({}));
        let agent = ServiceBuilder::new()
            .layer(log.on_run("a"))
            .layer(AgentLayer::new(tools.clone()))
            .layer(hooks::model(Arc::new(AtStep(1, flow))))
            .service(model.clone());
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.text(), said);
        assert_eq!(log.take(), [format!("a {end}")]);
        assert_eq!((model.calls(), tools.done()), (1, 1));
        // What was paid for is kept: the question, the round, and what was said.
        let turns = 2 + usize::from(!said.is_empty());
        assert_eq!(answer.transcript().unwrap().len(), turns);
    }
}

#[tokio::test]
async fn s010_a_hook_may_call_tools_in_the_place_of_the_model() {
    let part = ToolCallPart::new(CallId::new("c"), "t", json!({}));
    let flow = Flow::Answer(vec![Event::tool_call(part)]);
    let tools = ScriptedTools::new().answers("t", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(hooks::model(Arc::new(AtStep(0, flow))))
        .service(ScriptedModel::new().text("It is 42."));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "It is 42.");
    assert_eq!(tools.done(), 1);
}
