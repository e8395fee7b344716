use super::*;

fn nested(order: bool) -> Value {
    // As text, since a map may sort its keys.
    let text = match order {
        true => r#"{"q": {"x": [{"k": 1, "l": "a b"}], "y": 2}, "n": 3}"#,
        false => r#"{"n":3,"q":{"y":2,"x":[{"l":"a b","k":1}]}}"#,
    };
    Value::from(text)
}

fn text_calls(all: &[&str]) -> ScriptedModel {
    let model = all.iter().fold(ScriptedModel::new(), |model, arguments| {
        model.tool_call("a", *arguments).then()
    });
    model.text("done")
}

// Case C095.
#[tokio::test]
async fn the_third_equal_call_halts_the_run() {
    let (one, other) = (nested(true), nested(false));
    let (one, other) = (one.as_str().unwrap(), other.as_str().unwrap());
    let ended = ends(LoopDetector::new(3), text_calls(&[one, other, one, other])).await;
    let reason = "`a` was called 3 times with the same arguments";
    assert_eq!(ended, (halted(reason), 3, 2));
}

#[tokio::test]
async fn calls_that_differ_are_not_a_loop() {
    for different in [
        ["{\"n\":1}", "{\"n\":2}", "{\"n\":\"1\"}"],
        ["[1,2]", "[2,1]", "[[1],2]"],
        ["", "{", "not JSON"],
        [
            "{\"a\":{\"b\":1}}",
            "{\"a\":{},\"b\":1}",
            "{\"a\":{\"b\":null}}",
        ],
    ] {
        let ended = ends(LoopDetector::new(2), text_calls(&different)).await;
        assert_eq!(ended.0, Outcome::Completed, "{different:?}");
    }
    let deep = "[".repeat(100_000);
    let ended = ends(LoopDetector::new(2), text_calls(&[&deep, &deep])).await;
    assert_eq!(ended.2, 1, "what is not JSON is compared as text");
}

// Case C096.
#[tokio::test]
async fn each_call_is_counted_separately() {
    let (a, b) = (("a", json!({})), ("b", json!({})));
    let alternating = || {
        let all = [&a, &b, &a, &b, &a, &b].map(|(tool, arguments)| (*tool, arguments.clone()));
        calls(all)
    };
    // A, B, A, B: two of each. The fifth is the third A.
    let ended = ends(LoopDetector::new(3), alternating()).await;
    let reason = "`a` was called 3 times with the same arguments";
    assert_eq!(ended, (halted(reason), 5, 4));
    // In a window of four rounds there are no three.
    let ended = ends(LoopDetector::new(3).window(4), alternating()).await;
    assert_eq!(ended, (Outcome::Completed, 7, 6));
}

#[tokio::test]
async fn the_calls_of_one_answer_count() {
    let same = |model: ScriptedModel| model.tool_call("a", json!({"n": 1}));
    let model = same(same(same(ScriptedModel::new())))
        .tool_call("b", json!({}))
        .then()
        .text("done");
    let (outcome, _, executed) = ends(LoopDetector::new(3), model).await;
    assert!(matches!(outcome, Outcome::Halted { .. }));
    assert_eq!(executed, 0);
}

#[tokio::test]
async fn a_loop_is_skipped_with_a_message_to_the_model() {
    let same = ("a", json!({}));
    let tools = tools();
    let model = calls([same.clone(), same.clone(), same.clone(), ("b", json!({}))]);
    let agent = AgentLayer::new(tools.clone())
        .gate(LoopDetector::new(2).skip())
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    // What was skipped counts: the third is skipped, too.
    let (done, denied) = (ToolStatus::Done, ToolStatus::Denied);
    assert_eq!(statuses(&answer), [done, denied, denied, done]);
    assert_eq!(tools.calls().len(), 2);
    let told = model.request(2).transcript;
    let result = &told.last().unwrap().results()[0];
    assert_eq!(
        result.outcome.content.text(),
        "The call was not run: `a` was called 2 times with the same arguments. Try something else, \
         or answer."
    );
}

#[tokio::test]
async fn the_model_is_warned_of_a_loop() {
    let same = ("a", json!({}));
    let model = calls([same.clone(), same, ("b", json!({}))]);
    let agent = AgentLayer::new(tools())
        .gate(LoopDetector::new(2).warn())
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(statuses(&answer), [ToolStatus::Done; 3]);
    let warned = model.request(2).transcript;
    let warning = warned.last().unwrap().as_message();
    assert_eq!(
        warning.text(),
        "`a` was called 2 times with the same arguments. Try something else, or answer."
    );
    let by = Author::Layer {
        name: "loop_detector".into(),
    };
    assert_eq!(warning.parts[0].author, by);
    // Once for each time.
    let said = answer.finish.transcript.unwrap();
    let warnings = said.rev().filter(|t| t.as_message().parts[0].author == by);
    assert_eq!(warnings.count(), 1);
}

#[tokio::test]
async fn a_skipped_call_has_no_effect() {
    let broken = Error::new(ErrorKind::Server, "it broke");
    let model = ScriptedModel::new()
        .tool_call("a", json!({}))
        .tool_call("a", json!({}))
        .then()
        .error(broken);
    let agent = AgentLayer::new(tools())
        .gate(LoopDetector::new(2).skip())
        .layer(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let error = body.collect().await.unwrap_err();
    assert_eq!(error.error.effects(), SideEffects::None);
}
