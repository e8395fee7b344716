use crate::common::{connect, message};
use concentric_core::{Context, Event, Interrupt, Reply};
use concentric_mcp::{ELICITATION, McpConnection};
use concentric_tools::{RoundEnd, ToolLifecycle, Toolset};
use serde_json::{Value, json};

/// Calls the tool of a server that asks, and answers with `reply`. Returns the server's answer.
async fn asked(
    server: &McpConnection,
    reply: impl Fn(&Interrupt, &Context) -> Option<Reply> + Send + 'static,
) -> Value {
    let context = Context::new();
    let replying = context.clone();
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tools(server.tools()))
        .with_context(context)
        .on_event(move |event| {
            let Event::Custom(event) = event else {
                return;
            };
            let interrupt: Interrupt = event.read().unwrap();
            assert_eq!(interrupt.reason, ELICITATION);
            assert_eq!(
                interrupt.call_id.as_ref().map(|id| id.as_str()),
                Some("call_1")
            );
            let question = "The MCP server `hostile` requests input: Which row?";
            assert_eq!(interrupt.message.as_deref(), Some(question));
            let schema = interrupt.response_schema.as_deref().unwrap();
            assert_eq!(schema["properties"]["row"]["type"], "integer");
            if let Some(reply) = reply(&interrupt, &replying) {
                replying.reply(reply).unwrap();
            }
        });
    let end = lifecycle
        .execute_round(message("hostile__call", &json!({})))
        .await
        .unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    let text = round
        .results()
        .first()
        .unwrap()
        .outcome
        .content
        .text()
        .into_owned();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_question_is_an_interrupt_of_the_run() {
    let server = connect("asks").await;
    let answer = asked(&server, |it, _| {
        Some(Reply::resolve(it.id.clone(), json!({"row": 7})))
    })
    .await;
    assert_eq!(
        answer,
        json!({"action": "accept", "content": {"row": 7, "side": "left"}})
    );
    let answer = asked(&server, |it, _| Some(Reply::cancel(it.id.clone()))).await;
    assert_eq!(answer, json!({"action": "decline"}));
}

#[tokio::test]
async fn a_question_without_an_answer_is_cancelled() {
    let server =
        crate::common::server("asks").answer_timeout(std::time::Duration::from_millis(100));
    let server = server.connect().await.unwrap();
    let answer = asked(&server, |_, _| None).await;
    assert_eq!(answer, json!({"action": "cancel"}));
}

#[tokio::test]
async fn a_flood_of_questions_is_refused_at_once() {
    let server = connect("asks-often").await;
    let outcome = crate::common::call(&server, "hostile__call", json!({})).await;
    let answers: Vec<String> = serde_json::from_str(&outcome.content.text()).unwrap();
    assert_eq!(answers, vec!["cancel"; 16]);
}
