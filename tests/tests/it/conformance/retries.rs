use super::*;

/// A model under retry and fallback, its stand-in, and the agent.
fn persistent(first: &ScriptedModel, second: &ScriptedModel) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(ScriptedTools::new()))
            .layer(FallbackLayer::new("first").or("second", second.clone()))
            .retry(retry(3))
            .service(first.clone()),
    )
}

// Case C028.
#[tokio::test]
async fn an_error_after_the_commit_point_is_not_retried() {
    let first = ScriptedModel::new()
        .text("a")
        .error(server_error())
        .repeat();
    let second = ScriptedModel::new().text("b").repeat();
    let agent = persistent(&first, &second);
    let (events, error) = assert_fails(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "a");
    assert_eq!(error.code(), Some("E7"));
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

// Case C029.
#[tokio::test]
async fn an_error_before_the_commit_point_may_be_retried() {
    let first = ScriptedModel::new().error(server_error()).repeat();
    let second = ScriptedModel::new().text("b");
    let agent = persistent(&first, &second);
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "b");
    assert_eq!((first.calls(), second.calls()), (3, 1));
}

/// A layer that tries again after output, and says so first.
async fn start_over(
    request: ChatRequest,
    mut next: Next,
) -> Result<ChatResponse<EventStream>, Error> {
    let first = next.run(request.clone()).await?;
    Ok(first.map_body(|body| {
        EventStream::new(stream::unfold(
            (body, Some((next, request))),
            async |(mut body, again)| match (body.next().await?, again) {
                (Err(error), Some((mut next, request))) if error.is_retryable() => {
                    match next.run(request).await {
                        Ok(second) => Some((Ok(Event::Reset), (second.body, None))),
                        Err(error) => Some((Err(error), (EventStream::new(stream::empty()), None))),
                    }
                }
                (item, again) => Some((item, (body, again))),
            },
        ))
    }))
}

// Case C030.
#[tokio::test]
async fn a_reset_precedes_a_second_attempt_after_output() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .text("I begin")
        .tool_call("pay", json!({}))
        .error(server_error())
        .then()
        .text("I say");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(from_fn(start_over))
        .service(model.clone());
    let response = agent.oneshot(request()).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    assert_eq!(
        shape(&events),
        "step_start text tool_call reset text step_finish finish"
    );
    // The history knows the second attempt only, and the first one's call was not run.
    let transcript = finish.transcript.unwrap();
    assert_eq!(transcript.len(), 2);
    let message = transcript.last().unwrap().as_message();
    assert_eq!(message.text(), "I say");
    assert_eq!(message.parts.len(), 1);
    assert!(tools.calls().is_empty());
    assert_eq!(finish.reason, FinishReason::Stop);

    // So does a consumer that collects.
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(from_fn(start_over))
        .service(
            ScriptedModel::new()
                .text("I begin")
                .error(server_error())
                .then()
                .text("I say"),
        );
    assert_eq!(
        agent
            .oneshot(request())
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "I say"
    );
}

// Case C030; where the failed answer was held, there is nothing to reset.
#[tokio::test]
async fn a_held_answer_is_repeated_without_a_reset() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .text("I begin")
        .tool_call("pay", json!({}))
        .error(server_error())
        .then()
        .text("I say");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .retry(retry(2))
        .layer(CommitLayer::whole())
        .service(model.clone());
    let response = agent.oneshot(request()).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    let events: Vec<_> = events
        .into_iter()
        .filter(|event| !matches!(event, Event::Custom(_)))
        .collect();
    assert_eq!(shape(&events), "step_start text step_finish finish");
    assert_eq!(text_of(&events), "I say");
    assert_eq!((finish.transcript.unwrap().len(), model.calls()), (2, 2));
    assert!(tools.calls().is_empty());
}

// Case C031.
#[tokio::test]
async fn reasoning_counts_as_output() {
    let first = ScriptedModel::new()
        .reasoning("Hm.")
        .error(server_error())
        .repeat();
    let second = ScriptedModel::new().text("b").repeat();
    let agent = persistent(&first, &second);
    let (events, _) = assert_fails(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(shape(&events), "step_start reasoning");
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

// Case C032.
#[tokio::test]
async fn an_answering_layer_does_not_call_the_provider() {
    let log = Log::default();
    let model = ScriptedModel::new().text("never asked");
    let cached = from_fn(async |_: ChatRequest, _: Next| {
        Ok(ChatResponse::new(stream::iter([
            Ok(Event::text("from the cache")),
            Ok(Event::finish(FinishReason::Stop, Usage::default())),
        ])))
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(inspect_events({
            let log = log.clone();
            move |event: &Event| log.add(shape([event]))
        }))
        .layer(cached)
        .layer(logs!(log, "inner"))
        .service(model.clone());
    let answer = agent
        .oneshot(request())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.text(), "from the cache");
    assert_eq!(answer.transcript().unwrap().len(), 2);
    assert_eq!(log.take(), ["text", "finish"]);
    assert_eq!(model.calls(), 0);
}
