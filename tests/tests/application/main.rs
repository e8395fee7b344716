//! An application with the built-in layers alone, and what it does when providers fail, tools need
//! approvals and clients disconnect. Its stack is `agent.rs`.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

mod agent;
mod fallback;
mod spans;
mod tools;
mod upstream;

use axum::Router;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use spans::Spans;
use std::time::Duration;
use tempfile::TempDir;
use tower::ServiceExt;
use upstream::{Reply, Upstream};

/// The application over a database that outlives it.
struct App {
    folder: TempDir,
    http: Upstream,
    router: Router,
}

impl App {
    fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Upstream::default())
    }

    fn start(folder: TempDir, http: Upstream) -> Self {
        let agent = agent::agent(&folder.path().join("app.db"), http.clone()).unwrap();
        let router = tools::app(agent);
        Self {
            folder,
            http,
            router,
        }
    }

    /// The application of another process, with the same database and services.
    fn restart(self) -> Self {
        drop(self.router);
        Self::start(self.folder, self.http)
    }

    async fn post(&self, user: &str, input: Value) -> Response<axum::body::Body> {
        let request = Request::post("/agent")
            .header("authorization", format!("Bearer {user}-secret"))
            .header("content-type", "application/json")
            .body(axum::body::Body::from(input.to_string()))
            .unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn run(&self, user: &str, thread: &str, run: &str, text: &str) -> Vec<Value> {
        let response = self.post(user, message(thread, run, text)).await;
        assert_eq!(response.status(), StatusCode::OK);
        events(response).await
    }

    async fn reply(&self, user: &str, thread: &str, run: &str, resume: Value) -> Vec<Value> {
        let mut input = message(thread, run, "");
        input["messages"] = json!([]);
        input["resume"] = resume;
        events(self.post(user, input).await).await
    }

    fn refunds(&self) -> Vec<u32> {
        let shop = rusqlite::Connection::open(self.folder.path().join("app.db")).unwrap();
        let mut rows = shop.prepare("SELECT euros FROM refunds").unwrap();
        let rows = rows.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

fn message(thread: &str, run: &str, text: &str) -> Value {
    let message = json!({"id": format!("m-{run}"), "role": "user", "content": text});
    json!({"threadId": thread, "runId": run, "messages": [message], "tools": [], "context": [],
        "state": {}, "forwardedProps": {}})
}

async fn events(response: Response<axum::body::Body>) -> Vec<Value> {
    let body: Bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn text(events: &[Value]) -> String {
    let deltas = events
        .iter()
        .filter(|e| e["type"] == "TEXT_MESSAGE_CONTENT");
    deltas.map(|e| e["delta"].as_str().unwrap()).collect()
}

fn last(events: &[Value]) -> &Value {
    events.last().unwrap()
}

/// The replies to all interrupts of a run.
fn replies(events: &[Value], payload: &Value) -> Value {
    let interrupts = last(events)["outcome"]["interrupts"].as_array();
    let interrupts = interrupts.unwrap_or_else(|| panic!("no interrupt: {events:?}"));
    let reply = |interrupt: &Value| json!({"interruptId": interrupt["id"], "status": "resolved", "payload": payload});
    interrupts.iter().map(reply).collect()
}

fn refund(euros: u32) -> Reply {
    Reply::Calls(vec![("refund", json!({"order": 7, "euros": euros}))])
}

#[tokio::test]
async fn strangers_are_rejected() {
    let app = App::new();
    let response = app.post("mallory", message("t", "r", "hi")).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_third_attempt_answers() {
    let app = App::new();
    app.http
        .openai()
        .script([Reply::Status(429, Some(0)), Reply::Status(500, None)]);
    let run = app.run("ann", "t", "r", "hi").await;
    assert_eq!(text(&run), "Done.");
    assert_eq!(
        (app.http.openai().calls(), app.http.anthropic().calls()),
        (3, 0)
    );
}

#[tokio::test]
async fn another_provider_answers_after_three_failures() {
    let app = App::new();
    app.http
        .openai()
        .script([const { Reply::Status(500, None) }; 3]);
    app.http.anthropic().script([Reply::text("Claude here.")]);
    let run = app.run("ann", "t", "r", "hi").await;
    assert_eq!(text(&run), "Claude here.");
    assert_eq!(
        (app.http.openai().calls(), app.http.anthropic().calls()),
        (3, 1)
    );
}

#[tokio::test]
async fn a_provider_that_keeps_failing_is_not_called() {
    let app = App::new();
    app.http
        .openai()
        .script([const { Reply::Status(500, None) }; 6]);
    for run in ["r1", "r2", "r3"] {
        // Each asks something else, since equal requests are answered from the cache.
        let run = app.run("ann", run, run, run).await;
        assert_eq!(text(&run), "Done.");
    }
    assert_eq!(
        (app.http.openai().calls(), app.http.anthropic().calls()),
        (6, 3)
    );
}

#[tokio::test]
async fn a_stream_that_is_cut_before_its_first_token_is_repeated() {
    let app = App::new();
    app.http.openai().script([Reply::Cut(Vec::new())]);
    let run = app.run("ann", "t", "r", "hi").await;
    assert_eq!(text(&run), "Done.");
    assert_eq!(app.http.openai().calls(), 2);
}

#[tokio::test]
async fn a_stream_that_is_cut_later_fails_the_run_once() {
    let app = App::new();
    let shown: Vec<String> = (0..40).map(|n| format!("word{n} ")).collect();
    app.http.openai().script([Reply::Cut(shown.clone())]);
    let run = app.run("ann", "t", "r", "hi").await;
    assert!(shown.concat().starts_with(&text(&run)), "{run:?}");
    assert_eq!(last(&run)["type"], "RUN_ERROR");
    assert_eq!(last(&run)["code"], "connection");
    assert_eq!(
        (app.http.openai().calls(), app.http.anthropic().calls()),
        (1, 0)
    );
}

#[tokio::test]
async fn a_conversation_belongs_to_one_user_and_survives_a_restart() {
    let app = App::new();
    app.run("ann", "t", "r1", "My name is Ann.").await;
    let app = app.restart();
    app.run("ann", "t", "r2", "What is my name?").await;
    assert!(app.http.openai().last().contains("My name is Ann."));
    app.run("eve", "t", "r3", "What is my name?").await;
    assert!(!app.http.openai().last().contains("My name is Ann."));
}

#[tokio::test]
async fn an_approval_survives_a_restart_and_is_used_once() {
    let spans = Spans::of_thread();
    let app = App::new();
    app.http.openai().script([refund(20)]);
    let asked = app.run("ann", "t", "r1", "Refund 20.").await;
    let approve = replies(&asked, &json!({"approved": true}));
    assert!(app.refunds().is_empty());

    let app = app.restart();
    let stranger = app.reply("eve", "t", "r2", approve.clone()).await;
    assert_eq!(last(&stranger)["code"], "run_not_found");
    let replies = [
        app.reply("ann", "t", "r3", approve.clone()),
        app.reply("ann", "t", "r4", approve),
    ];
    let ends = join_all(replies).await;
    let codes: Vec<&Value> = ends.iter().map(|run| &last(run)["type"]).collect();
    assert!(codes.contains(&&json!("RUN_FINISHED")), "{ends:?}");
    let lost = ends
        .iter()
        .map(|run| last(run))
        .find(|end| end["type"] == "RUN_ERROR");
    assert_eq!(lost.unwrap()["code"], "already_resumed");
    assert_eq!(app.refunds(), [20]);

    // The resumed part of the run is linked to the first one; rejected replies have no span.
    let runs = spans.runs();
    let [first, resumed] = &runs[..] else {
        panic!("{runs:?}");
    };
    let links = resumed.links.iter().map(|link| &link.span_context);
    let linked: Vec<_> = links.map(|it| (it.trace_id(), it.span_id())).collect();
    let first = &first.span_context;
    assert_eq!(linked, [(first.trace_id(), first.span_id())]);
}

#[tokio::test]
async fn edited_arguments_are_validated() {
    let app = App::new();
    app.http.openai().script([refund(20)]);
    let asked = app.run("ann", "t", "r1", "Refund 20.").await;
    let edit = |euros: u32| {
        let arguments = json!({"order": 7, "euros": euros});
        replies(&asked, &json!({"approved": true, "editedArgs": arguments}))
    };
    let rejected = app.reply("ann", "t", "r2", edit(501)).await;
    assert_eq!(last(&rejected)["code"], "malformed_reply");
    let message = last(&rejected)["message"].as_str().unwrap();
    assert!(message.contains("/euros"), "{message}");
    assert!(app.refunds().is_empty());

    let run = app.reply("ann", "t", "r3", edit(30)).await;
    assert_eq!(last(&run)["type"], "RUN_FINISHED");
    assert_eq!(app.refunds(), [30]);
}

#[tokio::test]
async fn the_reason_of_a_denial_reaches_the_model() {
    let app = App::new();
    app.http.openai().script([refund(20)]);
    let asked = app.run("ann", "t", "r1", "Refund 20.").await;
    let deny = json!({"approved": false, "reason": "The lamp was not returned."});
    let run = app.reply("ann", "t", "r2", replies(&asked, &deny)).await;
    assert_eq!(last(&run)["type"], "RUN_FINISHED");
    assert!(
        app.http
            .openai()
            .last()
            .contains("The lamp was not returned.")
    );
    assert!(app.refunds().is_empty());
}

#[tokio::test]
async fn a_disconnect_closes_the_stream_of_the_provider() {
    let app = App::new();
    app.http
        .openai()
        .script([Reply::Hang(vec!["One ".into(), "moment".into()])]);
    let mut body = app.post("ann", message("t", "r", "hi")).await.into_body();
    let mut shown = String::new();
    while !shown.contains("TEXT_MESSAGE_CONTENT") {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        shown.push_str(std::str::from_utf8(&frame).unwrap());
    }
    assert_eq!(app.http.openai().open(), 1);
    drop(body);
    tokio::time::timeout(Duration::from_secs(5), async {
        while app.http.openai().open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn two_hundred_runs_do_not_mix() {
    let app = App::new();
    let threads: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
    app.http
        .openai()
        .script((0..200).map(|n| Reply::text(&format!("answer {n}"))));
    let runs = threads
        .iter()
        .map(|thread| app.run("ann", thread, thread, thread));
    let mut answers: Vec<String> = join_all(runs).await.iter().map(|run| text(run)).collect();
    answers.sort();
    let mut expected: Vec<String> = (0..200).map(|n| format!("answer {n}")).collect();
    expected.sort();
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn equal_questions_about_the_stock_are_asked_once() {
    let app = App::new();
    let stock = || Reply::Calls(vec![("stock", json!({"item": "lamp"}))]);
    app.http
        .openai()
        .script([stock(), Reply::text("12"), stock(), Reply::text("12")]);
    app.run("ann", "t1", "r1", "How many lamps?").await;
    app.run("ann", "t2", "r2", "How many lamps?").await;
    assert_eq!(app.http.stock(), 1);
}

#[tokio::test]
async fn a_provider_gets_no_card_number_and_no_email_address() {
    let app = App::new();
    let order = Reply::Calls(vec![("order", json!({"id": 7}))]);
    app.http
        .openai()
        .script([order, Reply::text("Ask ann@example.com.")]);
    let question = "What did I pay with? Write to bob@example.com.";
    let run = app.run("ann", "t", "r", question).await;
    let request = app.http.openai().last();
    assert!(request.contains("one lamp"), "{request}");
    assert!(
        !request.contains("4111") && !request.contains("bob@"),
        "{request}"
    );
    assert_eq!(text(&run), "Ask [email].");
}

#[tokio::test]
async fn equal_requests_of_a_tenant_share_an_answer() {
    let app = App::new();
    for (user, thread) in [("ann", "t1"), ("ann", "t2"), ("eve", "t3")] {
        let run = app.run(user, thread, thread, "hi").await;
        assert_eq!(text(&run), "Done.");
    }
    assert_eq!(app.http.openai().calls(), 2);
}

#[test]
fn the_stack_has_less_than_sixty_lines() {
    let code = include_str!("agent.rs").lines().map(str::trim);
    let code = code.filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert!(code.count() < 60);
}
