//! A model and directories that the application offers to a server.

use crate::common::{call, connect, message, server, until};
use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason, Usage,
};
use concentric_mcp::{McpConnection, McpServer};
use concentric_tools::{ToolLifecycle, Toolset};
use futures_util::stream;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::service_fn;

/// Calls the tool, and returns the replies that its server has received.
async fn replies(server: &McpConnection) -> Value {
    let outcome = call(server, "hostile__call", json!({})).await;
    serde_json::from_str(&outcome.content.text()).unwrap()
}

/// A model that keeps the requests.
fn model(requests: &Arc<Mutex<Vec<ChatRequest>>>) -> BoxModel {
    let requests = Arc::clone(requests);
    BoxModel::new(service_fn(move |request: ChatRequest| {
        requests.lock().unwrap().push(request);
        let end = Event::finish(FinishReason::Length, Usage::new(1, 1));
        let events = [Event::text("seven"), end].map(Ok);
        std::future::ready(Ok::<_, Error>(ChatResponse::new(stream::iter(events))))
    }))
}

#[tokio::test]
async fn a_server_reads_the_answer_of_an_offered_model() {
    let requests = Arc::default();
    let server = server("samples").sampling(model(&requests));
    let replies = replies(&server.connect().await.unwrap()).await;
    assert_eq!(
        replies[0]["content"],
        json!({"type": "text", "text": "seven"})
    );
    assert_eq!(
        (&replies[0]["role"], &replies[0]["stopReason"]),
        (&json!("assistant"), &json!("maxTokens"))
    );
    for (at, why) in [
        (1, "does not call tools"),
        (2, "too long"),
        (3, "only texts and images"),
        (4, "too many requests"),
        (5, "too many requests"),
    ] {
        let error = replies[at]["message"].as_str().unwrap();
        assert!(error.contains(why), "{at}: {error}");
    }
    let requests = requests.lock().unwrap();
    let [request] = &requests[..] else {
        panic!("{} requests", requests.len());
    };
    assert_eq!(request.options.max_output_tokens, Some(4_096));
    assert!(request.tools.is_empty());
    assert_eq!(
        request.transcript.user_message().unwrap().text(),
        "How many?"
    );
}

#[tokio::test]
async fn nothing_is_offered_by_default() {
    let replies = replies(&connect("samples").await).await;
    assert_eq!(replies[0]["code"], json!(-32601), "{replies}");
    let roots = self::replies(&connect("roots").await).await;
    assert_eq!(roots["code"], json!(-32601), "{roots}");
}

#[tokio::test]
async fn a_server_reads_the_offered_roots() {
    let server = server("roots").roots(["file:///work/one", "file:///work/two"]);
    let roots = replies(&server.connect().await.unwrap()).await;
    let expected = json!({"roots": [{"uri": "file:///work/one"}, {"uri": "file:///work/two"}]});
    assert_eq!(roots, expected);
    let invalid = McpServer::http("web", "https://example.com/mcp").roots(["/work"]);
    let error = invalid.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn an_error_of_the_model_does_not_reach_the_server() {
    let failing = service_fn(async |_: ChatRequest| {
        let what = "the host secret.example cannot be reached";
        Err::<ChatResponse<stream::Empty<Result<Event, Error>>>, _>(Error::new(
            ErrorKind::Connection,
            what,
        ))
    });
    let server = server("samples").sampling(BoxModel::new(failing));
    let replies = replies(&server.connect().await.unwrap()).await;
    assert_eq!(replies[0]["message"], json!("the model did not answer"));
}

#[tokio::test]
async fn a_call_that_is_dropped_drops_the_request_for_the_model() {
    struct Running(Arc<AtomicUsize>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let running = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&running);
    let waiting = service_fn(move |_: ChatRequest| {
        counter.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&counter));
        async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(running);
            Ok::<_, Error>(ChatResponse::new(stream::empty::<Result<Event, Error>>()))
        }
    });
    let server = server("samples").sampling(BoxModel::new(waiting));
    let server = server.connect().await.unwrap();
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tools(server.tools()));
    let calling = lifecycle.execute_round(message("hostile__call", &json!({})));
    tokio::select! {
        _ = calling => panic!("the call ended"),
        () = until(async || running.load(Ordering::SeqCst) == 1) => {}
    }
    until(async || running.load(Ordering::SeqCst) == 0).await;
}
