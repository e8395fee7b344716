use super::*;
use concentric_core::NoTools;
use concentric_layers::RetryModel;
use tower::retry::RetryLayer;

fn estimated() -> Amounts {
    let tokens = Amounts::new().input_tokens(30).output_tokens(20);
    money(100).model_calls(1).total_tokens(50).max(tokens)
}

/// What becomes of the budget by a call of `model` that is read to its end.
async fn spent_by(model: ScriptedModel) -> Amounts {
    let budget = limit(1_000);
    // Time that passes is charged, too.
    let mut request = ChatRequest::user("hi");
    request.context = TestEnvironment::new().context_builder().build();
    request.context.provide(budget.clone());
    if let Ok(answer) = layer().model().layer(model).oneshot(request).await {
        let _: Vec<_> = answer.body.collect().await;
    }
    assert_eq!(budget.reserved(), Amounts::new());
    budget.spent()
}

#[tokio::test(start_paused = true)]
async fn the_layer_keeps_the_layer_contract() {
    for budget in [
        BudgetPlugin::new(Limits::new().total_tokens(1_000_000)),
        BudgetPlugin::new(Limits::new()).ask(money(1)),
    ] {
        let layers = ServiceBuilder::new()
            .layer(budget.run())
            .layer(budget.model());
        check_layer(layers.into_inner()).await;
    }
}

#[tokio::test]
async fn a_call_reserves_its_estimate_and_pays_its_usage() {
    let budget = limit(1_000);
    let model = ScriptedModel::new()
        .deltas(["a", "b"])
        .usage(Usage::new(7, 2));
    let service = layer().model().layer(model);
    let mut body = service.oneshot(request(&budget)).await.unwrap().body;
    let aside = estimated().cached_input_tokens(1).time_ms(1);
    assert_eq!((budget.reserved(), budget.spent()), (aside, Amounts::new()));
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    let tokens = Amounts::new()
        .input_tokens(7)
        .output_tokens(2)
        .total_tokens(9);
    assert_eq!(budget.spent(), tokens.money(100).model_calls(1));
    assert_eq!(budget.reserved(), Amounts::new());
    // And once.
    drop(body);
    assert_eq!(budget.spent().model_calls, 1);
}

#[tokio::test]
async fn unreported_usage_is_charged_as_estimated() {
    let spent = spent_by(ScriptedModel::new().text("hi").usage(Usage::default())).await;
    assert_eq!(spent, estimated());
    let mut usage = Usage::default();
    usage.set_output_tokens(Some(5));
    let spent = spent_by(ScriptedModel::new().text("hi").usage(usage)).await;
    let expected = Amounts::new().input_tokens(30).output_tokens(5);
    assert_eq!(spent, expected.total_tokens(35).money(100).model_calls(1));
}

#[tokio::test]
async fn a_call_waiting_for_readiness_reserves_nothing() {
    let budget = limit(1_000);
    let model = Strict::with_capacity(ScriptedModel::new().text("hi"), 1);
    let mut holder = model.clone();
    holder.ready().await.unwrap();
    let mut call = task::spawn(layer().model().layer(model).oneshot(request(&budget)));
    assert!(call.poll().is_pending());
    assert_eq!(budget.reserved(), Amounts::new());
    drop(holder);
    assert!(call.is_woken());
    assert!(call.poll().is_ready());
}

#[tokio::test]
async fn a_call_that_was_not_sent_costs_nothing() {
    for error in [
        Error::new(ErrorKind::InvalidRequest, "no"),
        Error::new(ErrorKind::RateLimited, "slow down"),
        Error::new(ErrorKind::Overloaded, "later"),
        Error::new(ErrorKind::ContentFilter, "blocked by a guard"),
        Error::new(ErrorKind::Connection, "nobody there").with_code("not_connected"),
        Error::new(ErrorKind::Timeout, "nobody there").with_code("not_connected"),
    ] {
        assert_eq!(
            spent_by(ScriptedModel::new().error(error)).await,
            Amounts::new()
        );
    }
    let unready = ScriptedModel::new().unready(Error::new(ErrorKind::Server, "it broke"));
    assert_eq!(spent_by(unready).await, Amounts::new());
}

#[tokio::test]
async fn a_call_that_the_provider_rejected_is_counted_without_tokens() {
    for error in [
        Error::new(ErrorKind::RateLimited, "slow down").with_provider("openai"),
        Error::new(ErrorKind::Quota, "no credit").with_provider("openai"),
        Error::new(ErrorKind::InvalidRequest, "no").with_status(400),
        Error::new(ErrorKind::RateLimited, "slow down").with_status(429),
        Error::new(ErrorKind::Overloaded, "later").with_status(529),
        Error::new(ErrorKind::Server, "it broke").with_status(500),
    ] {
        assert_eq!(
            spent_by(ScriptedModel::new().error(error)).await,
            Amounts::new().model_calls(1)
        );
    }
}

#[tokio::test]
async fn rejected_attempts_reach_a_limit_of_calls() {
    let rejected = || Error::new(ErrorKind::Overloaded, "later").with_status(529);
    let model = (0..10).fold(ScriptedModel::new(), |model, _| {
        model.error(rejected()).then()
    });
    let budget = BudgetPlugin::new(Limits::new().model_calls(3));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(NoTools))
        .layer(RetryLayer::new(
            RetryModel::new(10).backoff(Duration::ZERO, Duration::ZERO),
        ))
        .layer(budget.model())
        .service(model.clone());
    let run = agent.oneshot(ChatRequest::user("hi"));
    let answer = run.await.unwrap().collect().await.unwrap();
    assert!(
        matches!(answer.finish.outcome, Outcome::Halted { .. }),
        "{:?}",
        answer.finish.outcome
    );
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn a_late_failure_is_charged_the_estimate() {
    for kind in [
        ErrorKind::Timeout,
        ErrorKind::Connection,
        ErrorKind::Truncated,
        ErrorKind::Other,
    ] {
        let spent = spent_by(ScriptedModel::new().error(Error::new(kind, "late"))).await;
        assert_eq!(spent, estimated());
    }
    let filtered = Error::new(ErrorKind::ContentFilter, "no").with_provider("openai");
    assert_eq!(
        spent_by(ScriptedModel::new().error(filtered)).await,
        estimated()
    );
}

#[tokio::test]
async fn a_truncated_answer_is_charged_the_larger_amount() {
    let broken = || Error::new(ErrorKind::Connection, "it broke");
    let heard = "0123".repeat(25);
    let said = ScriptedModel::new().text("hi");
    assert_eq!(spent_by(said.error(broken())).await, estimated());
    let said = ScriptedModel::new().text("hi");
    assert_eq!(spent_by(said.end_early()).await, estimated());
    let spent = spent_by(ScriptedModel::new().text(heard).error(broken())).await;
    assert_eq!(spent, estimated().output_tokens(25).total_tokens(55));
}

#[tokio::test]
async fn a_dropped_answer_is_charged_the_estimate() {
    let budget = limit(1_000);
    let service = layer()
        .model()
        .layer(ScriptedModel::new().text("a").never());
    let answer = service.clone().oneshot(request(&budget)).await.unwrap();
    drop(answer);
    assert_eq!(budget.spent(), estimated());
    // So is a call that was sent, and not one that was not.
    let service = layer().model().layer(ScriptedModel::new().never());
    drop(service.clone().oneshot(request(&budget)));
    assert_eq!(budget.spent(), estimated());
    let mut call = task::spawn(service.oneshot(request(&budget)));
    assert!(call.poll().is_pending());
    drop(call);
    assert_eq!(budget.spent(), estimated().plus(estimated()));
    assert_eq!(budget.reserved(), Amounts::new());
}

// Case F034.
#[tokio::test]
async fn of_two_concurrent_calls_over_budget_one_is_rejected() {
    let budget = limit(150);
    let model = ScriptedModel::new().text("a").repeat();
    let service = layer().model().layer(model.clone());
    let first = service.clone().oneshot(request(&budget)).await.unwrap();
    let error = service.clone().oneshot(request(&budget)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Halted, Some(OVER_BUDGET))
    );
    assert_eq!(model.calls(), 1);
    drop(first);
    assert_eq!(budget.spent().money, 100);
}

#[tokio::test]
async fn a_call_without_a_budget_is_not_made() {
    let model = ScriptedModel::new().text("a");
    let service = layer().model().layer(model.clone());
    let error = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn each_call_is_charged_time_by_the_runs_clock() {
    let test = TestEnvironment::new();
    let budget = Budget::new(Limits::new().time_ms(5_000));
    let model = ScriptedModel::new().sleep(Duration::from_secs(5)).text("a");
    let service = layer().model().layer(model.then().text("b"));
    let with = |mut request: ChatRequest| {
        request.context.provide(budget.clone());
        request
    };
    let mut call = task::spawn(service.clone().oneshot(with(test.request("hi"))));
    assert!(call.poll().is_pending());
    test.advance(Duration::from_secs(5));
    let answer = call.await.unwrap();
    test.advance(Duration::from_millis(250));
    answer.collect().await.unwrap();
    assert_eq!(budget.spent().time_ms, 5_250);
    let error = service.oneshot(with(test.request("hi"))).await.unwrap_err();
    assert_eq!(error.code(), Some(OVER_BUDGET));
}

#[tokio::test]
async fn a_call_is_estimated_at_four_bytes_per_token() {
    let budget = Budget::new(Limits::new());
    let mut request = request(&budget).with_system("12345678");
    let parts = vec![
        Part::text("abcd"),
        Part::new(PartKind::Image(Media::new(MediaSource::Url("x".into())))),
    ];
    let mut transcript = Transcript::new();
    transcript.push(Turn::message(Message::new(Role::User, parts)).unwrap());
    request.transcript = transcript;
    request.tools.push(Arc::new(ToolSpec::new(
        "name",
        "what for",
        json!({"type": "object"}),
    )));
    request.options_mut().max_output_tokens = Some(50);
    let schema = json!({"type": "object"}).to_string().len() as u64;
    let service = BudgetPlugin::new(Limits::new())
        .model()
        .layer(ScriptedModel::new().text("a"));
    let answer = service.oneshot(request).await.unwrap();
    let input = (8 + 4 + 4_000 + 4 + 8 + schema) / 4;
    let reserved = budget.reserved();
    assert_eq!((reserved.input_tokens, reserved.output_tokens), (input, 50));
    assert_eq!(reserved.total_tokens, input + 50);
    drop(answer);
}
