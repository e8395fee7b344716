//! The model of a compaction, which has a guard of its own.

use crate::histories::{assistant, round, user};
use concentric_core::{BoxModel, ChatRequest, Transcript};
use concentric_layers::{
    CompactionLayer, GuardLayer,
    compaction::Trigger,
    guard::{Parts, Rule, Rules},
};
use concentric_test::ScriptedModel;
use serde_json::json;
use tower::{Layer, ServiceExt};

/// JSON has escapes for some of its characters.
const SECRET: &str = "hunter\"2\n\\3";

#[tokio::test]
async fn the_model_that_summarises_gets_no_secret() {
    let summarizer = ScriptedModel::new().text("They said a password.").repeat();
    let rules = Rules::new([Rule::literals("password", [SECRET, "hunter4"])]).unwrap();
    let guarded = GuardLayer::new(rules)
        .input(Parts::USER)
        .layer(summarizer.clone());
    let compaction = CompactionLayer::new(BoxModel::new(guarded), 1_000)
        .when(Trigger::tokens(200))
        .head(0)
        .keep(20);
    let result = json!({ "text": SECRET }).to_string();
    // Longer than the limit of a text.
    let large = json!({ "text": format!("{SECRET} {}", "-".repeat(20_000)) }).to_string();
    let long = "-".repeat(800);
    let conversation: Transcript = [
        user(format!("{SECRET} {long}")),
        round("hunter4", &[&result, SECRET, &large]),
        assistant(long),
        user("Now?".to_owned()),
    ]
    .into_iter()
    .collect();

    let model = ScriptedModel::new().text("Yes.");
    let agent = compaction.layer(model.clone());
    let answer = agent.oneshot(ChatRequest::new(conversation)).await.unwrap();
    answer.collect().await.unwrap();

    let request = summarizer.request(0).transcript;
    let text = request.iter().next().unwrap().as_message().text();
    assert_eq!(text.matches("[password]").count(), 10, "{text}");
    assert!(!text.contains("hunter"), "{text}");
    let compacted = format!("{:?}", model.request(0).transcript);
    assert!(compacted.contains("They said a password."), "{compacted}");
}
