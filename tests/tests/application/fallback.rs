//! A fallback between two adapters: what the second provider receives, and what the first one has cost.

use crate::upstream::{Reply, Upstream};
use concentric::{
    AgentLayer, ChatRequest,
    layers::{CommitLayer, FallbackLayer},
    providers::{AnthropicLayer, ApiKey, OpenAiLayer},
};
use concentric_test::ScriptedTools;
use serde_json::{Value, json};
use tower::{Layer, ServiceBuilder, ServiceExt};

// Case F021.
#[tokio::test]
async fn f021_another_provider_receives_the_conversation_in_its_own_form() {
    let http = Upstream::default();
    let call = Reply::Calls(vec![("stock", json!({"item": "lamp"}))]);
    let cut = Reply::Cut(vec!["Seven of the".to_owned(), " lamps".to_owned()]);
    http.openai().script([call, cut]);
    http.anthropic().script([Reply::text("Seven.")]);
    let openai = OpenAiLayer::new("gpt-5.5", ApiKey::new("k")).layer(http.clone());
    let anthropic = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("k")).layer(http.clone());
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("stock", "7 lamps"),
        ))
        .layer(FallbackLayer::new("openai").or("anthropic", anthropic))
        // An answer that breaks off is not shown.
        .layer(CommitLayer::whole())
        .service(openai);
    let request = ChatRequest::user("How many lamps?").with_system("Be brief.");
    let answer = agent.oneshot(request).await.unwrap().collect().await;
    let answer = answer.unwrap();
    assert_eq!(answer.text(), "Seven.");
    assert_eq!((http.openai().calls(), http.anthropic().calls()), (2, 1));

    let sent: Value = serde_json::from_str(&http.anthropic().last()).unwrap();
    let messages = sent["messages"].as_array().unwrap();
    let content = |at: usize, of: &str| {
        let content = messages[at]["content"].as_array().unwrap().iter();
        let mut found = content.filter(|part| part["type"] == of);
        found
            .next()
            .cloned()
            .unwrap_or_else(|| panic!("{messages:?}"))
    };
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!(content(0, "text")["text"], "How many lamps?");
    let (call, result) = (content(1, "tool_use"), content(2, "tool_result"));
    assert_eq!(call["input"], json!({"item": "lamp"}));
    assert_eq!(
        (&call["name"], &call["id"]),
        (&json!("stock"), &result["tool_use_id"])
    );
    assert!(result.to_string().contains("7 lamps"), "{result}");
    assert!(sent["system"].to_string().contains("Be brief."), "{sent}");
    assert_eq!(sent["tools"][0]["name"], "stock");
    assert_eq!(sent["model"], "claude-opus-4-8");
    assert!(!sent.to_string().contains("Seven of"), "{sent}");

    // OpenAI has reported the usage of the first call. That of the second is estimated, since it did not report it.
    let usage = answer.finish.run_usage();
    let of = |model: &str| {
        let mut models = usage.models().iter();
        models
            .find(|usage| usage.model.as_deref() == Some(model))
            .unwrap()
            .clone()
    };
    let openai = of("gpt-5.5");
    assert_eq!((openai.calls, openai.estimated), (2, 1));
    assert!(openai.usage.input_tokens() > Some(100), "{openai:?}");
    // A token for each 4 bytes of "Seven of the lamps".
    assert_eq!(openai.usage.output_tokens(), Some(20 + 5));
    let anthropic = of("claude-opus-4-8");
    assert_eq!((anthropic.calls, anthropic.estimated), (1, 0));
}
