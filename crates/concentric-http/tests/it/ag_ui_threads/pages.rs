//! Pages of threads and of turns.

use super::*;
use std::time::SystemTime;

/// An agent that keeps its conversations in `store`.
fn agent(store: &Arc<MemoryStore>, tools: ScriptedTools, model: ScriptedModel) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(ConversationLayer::new(Arc::clone(store)))
        .layer(AgentLayer::new(tools))
        .service(model);
    BoxModel::new(agent)
}

async fn say(agent: &BoxModel, tenant: &str, thread: &str, id: &str, text: &str) {
    let mut transcript = Transcript::new();
    let message = Message::user(text).with_id(MessageId::new(id));
    transcript.push(Turn::message(message).unwrap());
    let request = ChatRequest::new(transcript).with_context(context(tenant, thread, id));
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap();
}

/// A store with a thread of one tenant: `questions` questions, each with an answer.
async fn talked(questions: usize) -> (Arc<MemoryStore>, Threads) {
    let store = Arc::new(MemoryStore::new());
    let model = ScriptedModel::new().text("Yes.").repeat();
    let agent = agent(&store, ScriptedTools::new(), model);
    for n in 0..questions {
        let text = format!("Question {n}?");
        say(&agent, "ada", "t", &format!("u{n}"), &text).await;
    }
    let threads = Threads::new().threads(Arc::clone(&store));
    (store, threads)
}

async fn page(threads: &Threads, path: &str) -> Value {
    let answer = send(threads.clone(), by("ada", get(path))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["cache-control"], "no-store");
    answer.json()
}

/// The positions of a page, and its user messages.
fn summary(page: &Value) -> (u64, u64, Vec<&str>) {
    let messages = page["messages"].as_array().unwrap();
    let users = messages.iter().filter(|it| it["role"] == "user");
    (
        page["start"].as_u64().unwrap(),
        page["end"].as_u64().unwrap(),
        users.map(|it| it["content"].as_str().unwrap()).collect(),
    )
}

#[tokio::test]
async fn a_thread_is_read_in_pages_from_both_ends() {
    let (_, threads) = talked(5).await;
    let newest = page(&threads, "/t?limit=3").await;
    assert_eq!(newest["threadId"], "t");
    assert_eq!(newest["turns"], 10);
    assert_eq!(summary(&newest), (7, 10, vec!["Question 4?"]));
    let older = page(&threads, "/t?limit=3&before=7").await;
    assert_eq!(summary(&older), (4, 7, vec!["Question 2?", "Question 3?"]));
    let oldest = page(&threads, "/t?after=0&limit=2").await;
    assert_eq!(summary(&oldest), (0, 2, vec!["Question 0?"]));
    let next = page(&threads, "/t?after=2&limit=2").await;
    assert_eq!(summary(&next), (2, 4, vec!["Question 1?"]));
    let whole = page(&threads, "/t").await;
    assert_eq!(whole["messages"].as_array().unwrap().len(), 10);
    // A position beyond the end is that of the end.
    let end = page(&threads, "/t?before=99&limit=3").await;
    assert_eq!(end, newest);
    for (path, at) in [("/t?after=99", 10), ("/t?before=0", 0)] {
        assert_eq!(summary(&page(&threads, path).await), (at, at, vec![]));
    }
}

#[tokio::test]
async fn messages_have_the_form_of_the_protocol_and_stable_ids() {
    let store = Arc::new(MemoryStore::new());
    // The second round repeats the id of the first one's call.
    let model = ScriptedModel::new()
        .tool_call("look", json!({"at": 1}))
        .then()
        .tool_call("look", json!({"at": 2}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "nothing");
    let agent = agent(&store, tools, model);
    say(&agent, "ada", "t", "u1", "Look.").await;
    let threads = Threads::new().threads(Arc::clone(&store));
    let first = page(&threads, "/t").await;
    let messages = first["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|it| it["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        [
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
            "assistant"
        ]
    );
    assert_eq!(
        messages[0],
        json!({"id": "u1", "role": "user", "content": "Look."})
    );
    for call in [1, 3] {
        let made = &messages[call]["toolCalls"][0];
        assert_eq!(made["type"], "function");
        assert_eq!(made["function"]["name"], "look");
        assert_eq!(messages[call + 1]["toolCallId"], made["id"]);
        assert_eq!(messages[call + 1]["content"], "nothing");
    }
    let ids: std::collections::HashSet<&str> = messages
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), messages.len());
    assert_ne!(
        messages[1]["toolCalls"][0]["id"],
        messages[3]["toolCalls"][0]["id"]
    );
    assert_eq!(page(&threads, "/t").await, first);
    // A tool result has the same id in another page.
    let newest = page(&threads, "/t?limit=2").await;
    assert_eq!(newest["messages"][1]["id"], messages[4]["id"]);
}

#[tokio::test]
async fn threads_are_listed_in_pages() {
    let (store, threads) = talked(1).await;
    for (tenant, thread) in [("ada", "a/b"), ("ada", "u"), ("bob", "s")] {
        let model = ScriptedModel::new().text("Yes.");
        let agent = agent(&store, ScriptedTools::new(), model);
        say(&agent, tenant, thread, "u0", "Hello?").await;
    }
    let first = page(&threads, "/?limit=2").await;
    let ids = |page: &Value| {
        let threads = page["threads"].as_array().unwrap().iter();
        let times = threads.clone().map(|it| it["updatedAt"].as_u64().unwrap());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = u64::try_from(since.unwrap().as_millis()).unwrap();
        assert!(times.clone().all(|it| it.abs_diff(now) < 600_000));
        assert!(times.rev().is_sorted());
        assert!(threads.clone().all(|it| it["turns"] == 2));
        let ids = threads.map(|it| it["threadId"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), ["u", "a/b"]);
    let before = first["next"].as_str().unwrap();
    let next = page(&threads, &format!("/?limit=2&before={before}")).await;
    assert_eq!((ids(&next), next.get("next")), (vec!["t".to_owned()], None));
    assert_eq!(page(&threads, "/a%2Fb").await["turns"], 2);
}

#[tokio::test]
async fn a_page_ends_after_a_large_turn() {
    let store = Arc::new(MemoryStore::new());
    let large = "x".repeat(4 << 20);
    let model = ScriptedModel::new().text(large).then().text("Yes.");
    let agent = agent(&store, ScriptedTools::new(), model);
    for n in 0..2 {
        say(&agent, "ada", "t", &format!("u{n}"), "More.").await;
    }
    let threads = Threads::new().threads(store);
    for (path, start, end) in [("/t", 1, 4), ("/t?after=0", 0, 2)] {
        let page = page(&threads, path).await;
        assert_eq!((&page["start"], &page["end"]), (&json!(start), &json!(end)));
        assert_eq!(page["messages"].as_array().unwrap().len(), end - start);
    }
}

#[tokio::test]
async fn a_deleted_thread_is_gone() {
    let (_, threads) = talked(1).await;
    let delete = || by("ada", request("DELETE", "/t"));
    let other = send(threads.clone(), by("bob", request("DELETE", "/t"))).await;
    assert_eq!(code(&other), (404, "thread_not_found".to_owned()));
    let deleted = send(threads.clone(), delete()).await;
    assert_eq!((deleted.status, deleted.body.as_str()), (204, ""));
    let again = send(threads.clone(), delete()).await;
    assert_eq!(code(&again), (404, "thread_not_found".to_owned()));
    let read = send(threads.clone(), by("ada", get("/t"))).await;
    assert_eq!(code(&read), (404, "thread_not_found".to_owned()));
    assert_eq!(page(&threads, "/").await, json!({"threads": []}));
}
