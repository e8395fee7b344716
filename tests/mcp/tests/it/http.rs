//! The service and the client over HTTP.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
    routing::any,
};
use concentric_core::{ErrorKind, ToolStatus};
use concentric_mcp::{McpConnection, McpServer, McpService};
use concentric_mcp_tests::{Called, call, served};
use concentric_tools::{NoArguments, Toolset, tool};
use futures_util::stream;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::{convert::Infallible, future::pending};
use tower::ServiceExt;

/// Serves an application, and returns its origin.
pub(crate) async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    origin
}

fn service() -> McpService {
    McpService::new("concentric", served())
}

async fn connected(url: String) -> McpConnection {
    let server = McpServer::http("web", url).allow_private_addresses();
    server.connect().await.unwrap()
}

async fn called(server: &McpConnection, tool: &str, arguments: Value, answer: Value) -> Called {
    let tools = Toolset::new().tools(server.tools());
    let name = format!("web__{tool}");
    call(&tools, &name, &arguments, &answer).await.unwrap()
}

#[tokio::test]
async fn a_served_toolset_can_be_called() {
    let origin = serve(Router::new().route_service("/mcp", service())).await;
    let server = connected(format!("{origin}/mcp")).await;
    let sum = called(&server, "add", json!({"a": 2, "b": 3}), Value::Null).await;
    assert_eq!(sum.outcome.status, ToolStatus::Done, "{sum:?}");
    assert_eq!(sum.outcome.data.as_deref(), Some(&json!({"sum": 5})));
    let broken = called(&server, "broken", json!({}), Value::Null).await;
    assert_eq!(broken.outcome.status, ToolStatus::Failed);
    assert!(broken.text().ends_with("It is broken."));
    let answer = json!({"approved": true});
    let refund = called(&server, "refund", json!({}), answer).await;
    assert_eq!(refund.outcome.status, ToolStatus::Done, "{refund:?}");
    assert_eq!(
        (refund.text().as_str(), refund.suspensions),
        ("refunded", 1)
    );
    for answer in [json!({"approved": false}), Value::Null] {
        let refund = called(&server, "refund", json!({}), answer).await;
        assert_eq!(refund.outcome.status, ToolStatus::Failed);
        assert!(refund.text().contains("denied"), "{}", refund.text());
    }
}

#[tokio::test]
async fn private_addresses_are_refused() {
    let origin = serve(Router::new().route_service("/mcp", service())).await;
    for url in [
        format!("{origin}/mcp"),
        origin.replace("127.0.0.1", "localhost"),
    ] {
        let error = McpServer::http("web", url).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error:#}");
    }
}

#[tokio::test]
async fn redirects_are_followed_within_the_origin_only() {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    let other = serve(Router::new().fallback(any(move || async move {
        count.fetch_add(1, Ordering::Relaxed);
    })))
    .await;
    let redirect = |to: String| any(move || async move { Redirect::temporary(&to) });
    let app = Router::new()
        .route_service("/mcp", service())
        .route("/moved", redirect("/mcp".to_owned()))
        .route("/away", redirect(format!("{other}/mcp")))
        .route("/loop", redirect("/loop".to_owned()));
    let origin = serve(app).await;
    let direct = connected(format!("{origin}/mcp")).await;
    let moved = connected(format!("{origin}/moved")).await;
    assert_eq!(moved.tools().len(), direct.tools().len());
    for path in ["away", "loop"] {
        let server = McpServer::http("web", format!("{origin}/{path}"));
        let error = server
            .allow_private_addresses()
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{path}: {error:#}");
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_bearer_token_is_sent_and_required() {
    let check = async |headers: HeaderMap, request: Request, next: Next| -> Response {
        match headers.get(header::AUTHORIZATION) {
            Some(token) if token == "Bearer secret" => next.run(request).await,
            _ => StatusCode::UNAUTHORIZED.into_response(),
        }
    };
    let app = Router::new().route_service("/mcp", service());
    let origin = serve(app.layer(axum::middleware::from_fn(check))).await;
    let server = McpServer::http("web", format!("{origin}/mcp")).allow_private_addresses();
    let error = server.clone().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error:#}");
    assert!(server.bearer("secret").connect().await.is_ok());
    // Without TLS, a token is sent to private addresses only.
    let error = McpServer::http("web", "http://example.com/mcp")
        .bearer("secret")
        .connect()
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    // An empty list does not turn the check off.
    let service = service().allow_hosts([""; 0]);
    let origin = serve(Router::new().route_service("/mcp", service)).await;
    let address = origin.trim_start_matches("http://").to_owned();
    let status = async |headers: &str| {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\n{headers}connection: close\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut answer = String::new();
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes())
            .await
            .unwrap();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)
            .await
            .unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status("host: evil.example\r\n").await, "403");
    let host = format!("host: {address}\r\n");
    assert_eq!(
        status(&format!("{host}origin: https://evil.example\r\n")).await,
        "403"
    );
    assert_ne!(status(&host).await, "403");
}

#[tokio::test]
async fn a_call_is_not_repeated_after_an_error_of_the_server() {
    let mode = Arc::new(AtomicUsize::new(0));
    let lost = Arc::clone(&mode);
    let fail = move |request: Request, next: Next| {
        let lost = Arc::clone(&lost);
        async move {
            // Once, for the next request.
            if lost
                .compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
            next.run(request).await
        }
    };
    let app = Router::new().route_service("/mcp", service());
    let origin = serve(app.layer(axum::middleware::from_fn(fail))).await;
    let server = connected(format!("{origin}/mcp")).await;
    mode.store(1, Ordering::Relaxed);
    let broken = called(&server, "broken", json!({}), Value::Null).await;
    assert_eq!(broken.outcome.status, ToolStatus::Unknown, "{broken:?}");
    let sum = called(&server, "add", json!({"a": 1, "b": 1}), Value::Null).await;
    assert_eq!(sum.text(), "2");
}

#[tokio::test]
async fn endless_responses_are_refused() {
    let endless = any(|| async {
        let part = "x".repeat(1 << 20);
        let parts = futures_util::stream::repeat(Ok::<_, std::convert::Infallible>(part));
        let kind = [(header::CONTENT_TYPE, "text/event-stream")];
        (kind, axum::body::Body::from_stream(parts))
    });
    let json = any(|| async {
        let parts =
            futures_util::stream::repeat(Ok::<_, std::convert::Infallible>("[".repeat(1 << 20)));
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, axum::body::Body::from_stream(parts))
    });
    let origin = serve(Router::new().route("/sse", endless).route("/json", json)).await;
    for path in ["sse", "json"] {
        let mut limits = concentric_mcp::McpLimits::default();
        limits.max_message_bytes = 4 << 20;
        let server = McpServer::http("web", format!("{origin}/{path}")).limits(limits);
        let server = server.allow_private_addresses();
        let limit = std::time::Duration::from_secs(5);
        assert!(
            server.connect_timeout(limit).connect().await.is_err(),
            "{path}"
        );
    }
}

/// The calls that reach a server whose first `tools/call` is answered with `status`, and the outcome.
async fn first_call_answered_with(status: StatusCode) -> (usize, Called) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let fail = move |request: Request, next: Next| {
        let count = Arc::clone(&count);
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let is_call = body.windows(12).any(|part| part == b"\"tools/call\"");
            if is_call && count.fetch_add(1, Ordering::Relaxed) == 0 {
                return status.into_response();
            }
            next.run(Request::from_parts(parts, body.into())).await
        }
    };
    let app = Router::new().route_service("/mcp", service());
    let origin = serve(app.layer(axum::middleware::from_fn(fail))).await;
    let server = connected(format!("{origin}/mcp")).await;
    // It is not idempotent.
    let broken = called(&server, "broken", json!({}), Value::Null).await;
    (calls.load(Ordering::Relaxed), broken)
}

#[tokio::test]
async fn the_status_tells_whether_a_call_was_executed() {
    for (status, expected) in [
        (StatusCode::BAD_REQUEST, ToolStatus::Failed),
        (StatusCode::CONFLICT, ToolStatus::Failed),
        (StatusCode::FOUND, ToolStatus::Unknown),
        (StatusCode::REQUEST_TIMEOUT, ToolStatus::Unknown),
        (StatusCode::BAD_GATEWAY, ToolStatus::Unknown),
    ] {
        let (calls, broken) = first_call_answered_with(status).await;
        assert_eq!((calls, broken.outcome.status), (1, expected), "{status}");
    }
}

#[tokio::test]
async fn a_call_is_sent_again_if_its_session_has_expired() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let answer = move |body: axum::body::Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let count = Arc::clone(&count);
        async move {
            let method = body["method"].as_str().unwrap_or_default();
            let result = match method {
                "initialize" => json!({
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "sessions", "version": "1"},
                }),
                "tools/list" => {
                    json!({"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]})
                }
                "tools/call" if count.fetch_add(1, Ordering::Relaxed) == 0 => {
                    return StatusCode::NOT_FOUND.into_response();
                }
                "tools/call" => json!({"content": [{"type": "text", "text": "paid"}]}),
                "server/discover" => return StatusCode::BAD_REQUEST.into_response(),
                _ => return StatusCode::ACCEPTED.into_response(),
            };
            let message = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
            let headers = [
                ("mcp-session-id", "one"),
                ("content-type", "application/json"),
            ];
            (headers, message.to_string()).into_response()
        }
    };
    let app = Router::new().route("/mcp", axum::routing::post(answer));
    let server = connected(format!("{}/mcp", serve(app).await)).await;
    let paid = called(&server, "pay", json!({}), Value::Null).await;
    assert_eq!(paid.outcome.status, ToolStatus::Done, "{paid:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_call_is_sent_once_the_server_can_ask() {
    let is_open = Arc::new(AtomicBool::new(false));
    let (opened, read) = (Arc::clone(&is_open), is_open);
    let stream = move || async move {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        opened.store(true, Ordering::Relaxed);
        StatusCode::METHOD_NOT_ALLOWED
    };
    let answer = move |body: axum::body::Bytes| async move {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let result = match body["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "sessions", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let is_open = read.load(Ordering::Relaxed).to_string();
                json!({"content": [{"type": "text", "text": is_open}]})
            }
            "server/discover" => return StatusCode::BAD_REQUEST.into_response(),
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        let message = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let headers = [
            ("mcp-session-id", "one"),
            ("content-type", "application/json"),
        ];
        (headers, message.to_string()).into_response()
    };
    let app = Router::new().route("/mcp", axum::routing::get(stream).post(answer));
    let server = connected(format!("{}/mcp", serve(app).await)).await;
    let called = called(&server, "ask", json!({}), Value::Null).await;
    assert_eq!(called.text(), "true");
}

#[tokio::test]
async fn only_a_number_of_calls_run_at_once() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let wait = tool("wait", "Waits.", move |NoArguments {}| {
        let gate = Arc::clone(&gate);
        async move {
            let _open = gate.acquire().await;
            "waited"
        }
    });
    let service = McpService::new("busy", Toolset::new().tool(wait.read_only()));
    let origin = serve(Router::new().route_service("/mcp", service)).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5 {
        // Each connection sends at most 64 requests at once.
        let server = connected(format!("{origin}/mcp")).await;
        for _ in 0..60 {
            let server = server.clone();
            calls.spawn(async move { called(&server, "wait", json!({}), Value::Null).await });
        }
    }
    for _ in 0..300 - 256 {
        let refused = calls.join_next().await.unwrap().unwrap();
        assert_eq!(refused.outcome.status, ToolStatus::Failed, "{refused:?}");
        assert!(refused.text().contains("too many calls"), "{refused:?}");
    }
    opened.add_permits(1);
    while let Some(waited) = calls.join_next().await {
        assert_eq!(waited.unwrap().text(), "waited");
    }
}

/// The status of the response to a message.
async fn status_of(message: Body) -> StatusCode {
    let request = Request::post("/mcp")
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .body(message)
        .unwrap();
    service().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn a_message_with_too_many_values_is_refused() {
    let message = |values: usize| {
        let meta = json!({"values": vec![0; values]});
        let client = json!({"name": "test", "version": "1"});
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client, "_meta": meta,
        });
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        Body::from(message.to_string())
    };
    assert_eq!(status_of(message(48_000)).await, StatusCode::OK);
    let refused = StatusCode::PAYLOAD_TOO_LARGE;
    assert_eq!(status_of(message(50_000)).await, refused);
    assert_eq!(status_of(Body::from(vec![b' '; 5 << 20])).await, refused);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_does_not_end_is_refused() {
    let (start, end) = (Bytes::from_static(b"{"), stream::once(pending()));
    let start = stream::iter([Ok::<_, Infallible>(start)]);
    let message = Body::from_stream(futures_util::StreamExt::chain(start, end));
    assert_eq!(status_of(message).await, StatusCode::REQUEST_TIMEOUT);
}
