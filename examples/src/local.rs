//! Helpers for a server that is used only on this machine, as during development.

use axum::{
    extract::Request,
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tower_http::cors::AllowOrigin;

/// Allows the origins of pages on this machine, on any port.
pub fn origins() -> AllowOrigin {
    AllowOrigin::predicate(|origin: &HeaderValue, _| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.parse::<Uri>().ok());
        origin.is_some_and(|uri| is_local(uri.host()))
    })
}

/// Middleware that accepts only requests to a local host name.
///
/// This prevents DNS rebinding, in which a remote page resolves its own name to this machine and a
/// browser then treats this server as that page's origin.
pub async fn only(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Uri>().ok());
    if is_local(host.as_ref().and_then(Uri::host)) {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "This server accepts only local requests.\n",
        )
            .into_response()
    }
}

fn is_local(host: Option<&str>) -> bool {
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Resolves on Ctrl-C or SIGTERM.
pub async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// Returns a command line that sends a question to the agent at `url`.
pub fn curl(url: &str) -> String {
    let body = r#"{"threadId":"t1","runId":"r1","messages":[{"id":"m1","role":"user","content":"which files are here?"}],"tools":[],"context":[],"state":{},"forwardedProps":{}}"#;
    format!("curl -N {url} -H 'content-type: application/json' -d '{body}'")
}
