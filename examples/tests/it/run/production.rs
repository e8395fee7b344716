//! `production`.

use super::{
    serve::{events, rest, send, start},
    *,
};

/// A run of one user message in the thread `t1`.
fn run(host: &str, user: &str, run: &str, question: &str) -> String {
    let message = json!({"id": run, "role": "user", "content": question});
    let body = json!({
        "threadId": "t1", "runId": run, "messages": [message],
        "tools": [], "context": [], "state": {}, "forwardedProps": {},
    })
    .to_string();
    let length = body.len();
    format!(
        "POST /agent HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nauthorization: Bearer {user}-secret\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn production_keeps_a_conversation_for_each_user() {
    let folder = Folder::new("production");
    std::fs::write(folder.0.join("bob@example.com.txt"), "").unwrap();
    let (mut first, address, log) = start("production", &folder.0).await;
    let stranger = rest(send(&address, run(&address, "mallory", "r0", LIST)).await).await;
    assert!(stranger.starts_with("HTTP/1.1 401"), "{stranger}");

    let question = format!("ann@example.com asks: {LIST}");
    let ann = rest(send(&address, run(&address, "ann", "r1", &question)).await).await;
    let (types, text) = events(&ann);
    assert_eq!(
        types.last().map(String::as_str),
        Some("RUN_FINISHED"),
        "{ann}"
    );
    assert!(text.contains("keeper.txt"), "{text}");
    // Nor does a result that the client sees have the address.
    assert!(ann.contains("TOOL_CALL_RESULT"), "{ann}");
    assert!(!ann.contains("bob@example"), "{ann}");
    first.kill().await.unwrap();
    let log = log.await.unwrap();
    let span = log
        .lines()
        .find(|line| line.starts_with("SPAN invoke_agent"));
    let span = span.unwrap_or_else(|| panic!("no span of the run: {log}"));
    assert!(span.contains("concentric.outcome=completed"), "{span}");

    // The redacted question is what the process has stored.
    let database = [".db", ".db-wal"].map(|end| {
        let file = folder.0.join(format!("target/.production{end}"));
        std::fs::read(file).unwrap_or_default()
    });
    let database = String::from_utf8_lossy(&database.concat()).into_owned();
    assert!(database.contains("[email] asks"), "the question is stored");
    assert!(
        !database.contains("ann@example.com"),
        "the question is redacted"
    );

    // Another process has the conversation, and no other user has it.
    let (_child, address, _) = start("production", &folder.0).await;
    let again = rest(send(&address, run(&address, "ann", "r2", LIST)).await).await;
    let (types, text) = events(&again);
    assert!(text.contains("5 messages"), "{text}");
    assert!(!types.iter().any(|t| t == "TOOL_CALL_START"), "{types:?}");
    let eve = rest(send(&address, run(&address, "eve", "r3", LIST)).await).await;
    let (types, _) = events(&eve);
    assert!(types.iter().any(|t| t == "TOOL_CALL_START"), "{types:?}");
}
