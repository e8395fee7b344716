use super::*;

// Case C052.
#[tokio::test]
async fn a_cancel_drops_a_tool_that_ignores_it() {
    let tools = ScriptedTools::new().never("slow").answers("quick", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .service(
            ScriptedModel::new()
                .tool_call("slow", json!({}))
                .tool_call("quick", json!({}))
                .then()
                .text("never asked"),
        );
    let request = request();
    let context = request.context.clone();
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    let mut run = task::spawn(async { assert_finishes(&mut body).await });
    assert_pending!(run.poll());
    assert_eq!((tools.live(), tools.done()), (1, 1));

    context.cancel(CancelReason::User);
    assert!(run.is_woken());
    let (events, finish) = assert_ready!(run.poll());
    assert_eq!((tools.live(), tools.dropped()), (0, 1));
    let aborted = Outcome::Aborted {
        reason: CancelReason::User,
    };
    assert_eq!(finish.outcome, aborted);
    assert_eq!(
        shape(&events),
        "step_start tool_call tool_call step_finish tool_result tool_result finish"
    );
    // The call that was done keeps its result.
    let transcript = finish.transcript.unwrap();
    let results = transcript.last().unwrap().results();
    let texts: Vec<_> = results.iter().map(|r| r.outcome.content.text()).collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[1], "42");
}

// Case C053.
#[tokio::test]
async fn a_cancel_ends_a_back_off_at_once() {
    let test = TestEnvironment::new();
    let model = ScriptedModel::new().error(server_error()).repeat();
    let minute = Duration::from_secs(60);
    let retry = RetryLayer::new(RetryModel::new(2).backoff(minute, minute));
    let agent = |outside: bool| {
        let agent = AgentLayer::new(ScriptedTools::new());
        if outside {
            BoxModel::new(retry.layer(agent.layer(model.clone())))
        } else {
            BoxModel::new(agent.layer(retry.layer(model.clone())))
        }
    };
    for outside in [true, false] {
        let request = test.request("hi");
        let context = request.context.clone();
        let mut call = task::spawn(agent(outside).oneshot(request));
        assert_pending!(call.poll());
        assert_eq!(test.clock().sleepers(), 1);
        let before = model.calls();

        context.cancel(CancelReason::User);
        assert!(call.is_woken());
        // Outside the loop, the second attempt is a run that ends as aborted; inside it, the loop drops the call.
        let response = assert_ready!(call.poll()).unwrap();
        let (events, finish) = assert_finishes(response.body).await;
        let aborted = Outcome::Aborted {
            reason: CancelReason::User,
        };
        assert_eq!(finish.outcome, aborted);
        assert!(!shape(&events).contains("text"));
        assert_eq!((test.clock().sleepers(), model.calls()), (0, before));
    }
}

// Case C054.
#[tokio::test]
async fn an_early_cancel_leaves_one_outcome_and_no_event() {
    let log = Log::default();
    let model = ScriptedModel::new().text("never asked");
    let agent = ServiceBuilder::new()
        .layer(ends!(log, "run"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model.clone());
    let request = request();
    request.context.cancel(CancelReason::User);
    let (events, _) = assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    assert_eq!(shape(&events), "finish");
    assert_eq!(log.take(), ["run: aborted"]);
    assert_eq!(model.calls(), 0);
}

// Case C056.
#[tokio::test]
async fn the_step_limit_after_tools_is_a_separate_outcome() {
    let tools = ScriptedTools::new().answers("search", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()).step_limit(2))
        .service(ScriptedModel::new().tool_call("search", json!({})).repeat());
    let (_, finish) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(finish.outcome, Outcome::StepLimit);
    assert_eq!(tools.done(), 2);
    assert_eq!(finish.transcript.unwrap().len(), 3);
}
