//! The quickstart's agent as an HTTP endpoint that speaks AG-UI, and that asks before it writes.
//!
//! ```console
//! $ cargo run --example serve
//! ```
//!
//! It listens on `127.0.0.1:8080`; `PORT` or `ADDR` say otherwise, and port 0 takes a free one. What
//! stands around the agent is what stands around any axum application.
//!
//! "write hello to note.txt" ends the run with a question, which any AG-UI client answers (`resume`).
//! Until then the run is in a SQLite file (`CONCENTRIC_DB`, or `target/.serve.db`), so that it goes on
//! also if this process was started again meanwhile. A server with more than one user tells them
//! apart by a [`Tenant`](concentric::store::Tenant): the client chooses the `threadId`.
//!
//! For the model, and the provider that it is of, see the quickstart.

use axum::{Router, http::StatusCode, http::header, routing::get};
use concentric::{
    AgentLayer, BoxModel, Error, ErrorKind,
    http::ag_ui::{AgUiLayer, Shutdown},
    layers::{DefaultsLayer, SuspendLayer},
    tools::Approval,
};
use concentric_examples::{files, local, model::model, store, terminal};
use std::{env, process::ExitCode, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder};
use tower_http::{
    cors::CorsLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    sensitive_headers::SetSensitiveRequestHeadersLayer,
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("info,tower_http=debug");
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Error> {
    let shutdown = Shutdown::new();
    let app = app(agent()?, &shutdown);
    let listener = listen(&address()).await?;
    let url = format!("http://{}/agent", listener.local_addr()?);
    terminal::say(format_args!(
        "The agent is at {url}\nTry it:\n\n  {}\n",
        local::curl(&url)
    ));

    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        local::stop_signal().await;
        // Running answers may go on for a while, and then are cancelled; none is cut off.
        shutdown.begin(Duration::from_secs(10));
    });
    // A client that has stopped reading does not keep the process.
    let too_late = async {
        local::stop_signal().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
    };
    tokio::select! {
        result = server.into_future() => Ok(result?),
        () = too_late => Ok(()),
    }
}

fn app(agent: BoxModel, shutdown: &Shutdown) -> Router {
    let agent = AgUiLayer::new()
        .agent("files")
        .shutdown(shutdown.clone())
        .layer(agent);
    Router::new()
        .route_service("/agent", agent)
        .route("/health", get(|| async { "ok" }))
        .layer(
            ServiceBuilder::new()
                .layer(SetSensitiveRequestHeadersLayer::new([
                    header::AUTHORIZATION,
                    header::COOKIE,
                ]))
                .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
                .layer(TraceLayer::new_for_http())
                .layer(PropagateRequestIdLayer::x_request_id())
                // Pages of this machine only: the agent reads this machine's files.
                .layer(CorsLayer::very_permissive().allow_origin(local::origins()))
                .layer(axum::middleware::from_fn(local::only))
                // Until the head of the response, which the agent sends as soon as it has read the
                // request: it bounds a slow upload, and cuts no stream.
                .layer(TimeoutLayer::with_status_code(
                    StatusCode::REQUEST_TIMEOUT,
                    Duration::from_secs(10),
                )),
        )
}

fn agent() -> Result<BoxModel, Error> {
    let store = store::open("serve")?;
    let tools = files::tools(".")?
        .tool(files::write_file(".")?)
        .gate(Approval::for_tools("write_file"))
        .ledger(store.clone());
    let agent = ServiceBuilder::new()
        .layer(DefaultsLayer::new().system(
            "You answer questions about the files of the current folder. Look before you answer, \
             and be brief.",
        ))
        .layer(SuspendLayer::new(Arc::new(store)))
        .layer(AgentLayer::new(tools).step_limit(16))
        .service(model()?);
    Ok(BoxModel::new(agent))
}

async fn listen(address: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|e| {
        let said = format!("cannot listen on {address}; set PORT or ADDR");
        Error::new(ErrorKind::Configuration, said).with_source(e)
    })
}

/// `ADDR`, or `PORT` on this machine only.
fn address() -> String {
    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    env::var("ADDR").unwrap_or_else(|_| format!("127.0.0.1:{port}"))
}
