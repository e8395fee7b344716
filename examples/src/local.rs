//! What a server needs that is for this machine only, as while one develops.

use axum::{
    extract::Request,
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tower_http::cors::AllowOrigin;

/// Pages that this machine serves, on whichever port.
pub fn origins() -> AllowOrigin {
    AllowOrigin::predicate(|origin: &HeaderValue, _| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.parse::<Uri>().ok());
        origin.is_some_and(|uri| is_local(uri.host()))
    })
}

/// Middleware that answers only what was sent to this machine by its own name.
///
/// A page of the internet may have its own name lead here (DNS rebinding), and a browser then takes
/// this server for that page's.
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
            "This server answers its own machine only.\n",
        )
            .into_response()
    }
}

fn is_local(host: Option<&str>) -> bool {
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Resolves at Ctrl-C, or when the process is asked to end.
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

/// A command line that asks the agent at `url` something.
pub fn curl(url: &str) -> String {
    let body = r#"{"threadId":"t1","runId":"r1","messages":[{"id":"m1","role":"user","content":"what is in this folder?"}],"tools":[],"context":[],"state":{},"forwardedProps":{}}"#;
    format!("curl -N {url} -H 'content-type: application/json' -d '{body}'")
}
