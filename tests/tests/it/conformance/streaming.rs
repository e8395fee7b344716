use super::*;

// Case C017.
#[tokio::test]
async fn an_event_dropped_by_an_inner_layer_stays_invisible() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(inspect_events({
            let log = log.clone();
            move |event: &Event| {
                if let Event::TextDelta(text) = event {
                    log.add(text.as_str());
                }
            }
        }))
        .layer(texts(|text| match text {
            "secret" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().deltas(["a", "secret", "b"]));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "ab");
    assert_eq!(log.take(), ["a", "b"]);
}

// Case C018.
#[tokio::test]
async fn one_event_becomes_two_and_one_is_dropped() {
    let agent = ServiceBuilder::new()
        .layer(texts(|text| match text {
            "b" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .layer(texts(|text| {
            Emit::Many(text.chars().map(|c| Event::text(c.to_string())).collect())
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().text("ab"));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(shape(&events), "step_start text step_finish finish");
    assert_eq!(text_of(&events), "a");
}

/// Drops the calls of tools.
#[derive(Clone)]
struct NoCalls;

impl Transform for NoCalls {
    fn event(&mut self, event: Event) -> Emit {
        match event {
            Event::ToolCall(_) => Emit::None,
            other => Emit::One(other),
        }
    }
}

// Case C027.
#[tokio::test]
async fn only_a_call_dropped_inside_the_loop_is_skipped() {
    let run = async |outside: bool| {
        let tools = ScriptedTools::new().answers("search", "42");
        let model = ScriptedModel::new()
            .text("Let me see.")
            .tool_call("search", json!({}))
            .then()
            .text("ok");
        let no_calls = TransformLayer::new(|_: &ChatRequest| NoCalls);
        let agent = AgentLayer::new(tools.clone());
        let agent = if outside {
            BoxModel::new(no_calls.layer(agent.layer(model.clone())))
        } else {
            BoxModel::new(agent.layer(no_calls.layer(model.clone())))
        };
        let body = agent.oneshot(request()).await.unwrap().body;
        let (events, finish) = assert_finishes(body).await;
        assert!(!shape(&events).contains("tool_call"));
        (tools.calls().len(), model.calls(), finish.outcome)
    };
    assert_eq!(run(true).await, (1, 2, Outcome::Completed));
    assert_eq!(run(false).await, (0, 1, Outcome::Completed));
}
