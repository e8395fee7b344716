use super::*;

// Case C097.
#[tokio::test]
async fn a_success_resets_the_count_of_consecutive_errors() {
    let none = || json!({});
    let three = [("fail", none()), ("fail", none()), ("fail", none())];
    let ended = ends(ErrorLimit::new(), calls(three.clone())).await;
    assert_eq!(
        ended,
        (halted("3 consecutive rounds of tool calls failed"), 3, 3)
    );

    let between = [
        ("fail", none()),
        ("fail", none()),
        ("a", none()),
        ("fail", none()),
        ("fail", none()),
    ];
    let ended = ends(ErrorLimit::new(), calls(between.clone())).await;
    assert_eq!(ended, (Outcome::Completed, 6, 5));
    let ended = ends(ErrorLimit::new().total(4), calls(between)).await;
    assert_eq!(ended, (halted("4 rounds of tool calls failed"), 5, 5));
}

#[tokio::test]
async fn a_success_in_a_round_outweighs_its_errors() {
    let model = ScriptedModel::new()
        .tool_call("fail", json!({}))
        .then()
        .tool_call("a", json!({}))
        .tool_call("fail", json!({}))
        .then()
        .tool_call("fail", json!({}))
        .tool_call("fail", json!({}))
        .then()
        .text("done");
    let gate = ErrorLimit::new().consecutive(2).counting_calls();
    let ended = ends(gate, model).await;
    assert_eq!(ended, (halted("2 consecutive tool calls failed"), 3, 5));
}

#[tokio::test]
async fn parallel_failures_count_once() {
    let model = || {
        let three = |model: ScriptedModel| {
            let fails = |model: ScriptedModel, _| model.tool_call("fail", json!({}));
            (0..3).fold(model, fails).then()
        };
        three(three(ScriptedModel::new())).text("done")
    };
    let ended = ends(ErrorLimit::new().total(3), model()).await;
    assert_eq!(ended, (Outcome::Completed, 3, 6));
    let ended = ends(ErrorLimit::new().consecutive(2), model()).await;
    let reason = "2 consecutive rounds of tool calls failed";
    assert_eq!(ended, (halted(reason), 2, 6));
    let ended = ends(ErrorLimit::new().counting_calls(), model()).await;
    assert_eq!(ended, (halted("3 consecutive tool calls failed"), 1, 3));
}

#[tokio::test]
async fn a_denial_counts_as_an_error_if_configured() {
    let denied = || calls([("deny", json!({})), ("deny", json!({}))]);
    let gate = ErrorLimit::new().consecutive(2);
    let ended = ends(gate.clone(), denied()).await;
    assert_eq!(ended.0, Outcome::Completed);
    let ended = ends(gate.counting_denied(), denied()).await;
    assert_eq!(ended.0, halted("2 consecutive rounds of tool calls failed"));
}

#[tokio::test]
async fn an_unknown_tool_counts_as_an_error() {
    let missing = calls([("nothing", json!({})), ("nothing", json!({}))]);
    let ended = ends(ErrorLimit::new().consecutive(2), missing).await;
    assert_eq!(
        ended,
        (halted("2 consecutive rounds of tool calls failed"), 2, 0)
    );
}

/// Removes the first turns of the conversation before the second step.
struct Shortens;

impl StepGate for Shortens {
    fn name(&self) -> &str {
        "shortens"
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        if draft.step == 1 {
            draft.rewrite(2, Vec::new())?;
        }
        Ok(StepDecision::Continue)
    }
}

#[tokio::test]
async fn a_rewritten_conversation_keeps_the_count_of_its_rounds() {
    let model = calls([
        ("fail", json!({})),
        ("fail", json!({})),
        ("fail", json!({})),
    ]);
    let agent = AgentLayer::new(tools())
        .gate(ErrorLimit::new())
        .gate(Shortens)
        .layer(model);
    let history = ["one", "two", "three"].map(Turn::user);
    let request = ChatRequest::new(history.into_iter().collect());
    let answer = run(&agent, request).await;
    let reason = "3 consecutive rounds of tool calls failed";
    assert_eq!(answer.finish.outcome, halted(reason));
    assert_eq!(answer.transcript().unwrap().len(), 4);
}
