//! The quickstart's agent as an AG-UI endpoint over HTTP, with approval before it writes a file.
//! `/chat` is an endpoint for `useChat` of the Vercel AI SDK 7, and `/chat6` for version 6.
//!
//! ```console
//! $ cargo run --example serve
//! ```
//!
//! It listens on `127.0.0.1:8080`; set `PORT` or `ADDR` to change that. Port 0 selects a free port.
//! The middleware around the agent is that of any axum application.
//!
//! "write hello to note.txt" ends the run with an interrupt, to which any AG-UI client can reply
//! (`resume`). Until then the run is stored in a SQLite file (`CONCENTRIC_DB`, or
//! `target/.serve.db`), so that it can resume after a restart of this process. The client chooses
//! the `threadId`, so a server with several users must separate them by
//! [`Tenant`](concentric::store::Tenant).
//!
//! A run continues when its client disconnects, and when this process is killed and started again. Its client
//! joins it with `GET /agent/threads/{threadId}/runs/{runId}/events`; see
//! [`Threads`](concentric::http::ag_ui::Threads) for the other routes.
//!
//! `http://127.0.0.1:8080/console` shows the runs, and approves their calls; see
//! [`Console`](concentric::http::console::Console). It accepts requests from this machine only.
//!
//! The model is selected as in the quickstart.

use axum::{Router, extract::ConnectInfo, http::StatusCode, http::header, routing::get};
use concentric::{
    AgentLayer, BoxModel, Error, ErrorKind,
    describe::describe,
    http::{
        Shutdown,
        ag_ui::{AgUiLayer, EventLogLayer, Threads},
        console::{Console, Operator},
        ui_messages::{Sdk, UiMessagesLayer},
    },
    layers::{
        ConversationLayer, DetachLayer, RequestDefaultsLayer, SuspendLayer, conversation::Merge,
        suspend::Sweeper,
    },
    store::{SqliteStore, Tenant},
    tools::Approval,
};
use concentric_examples::{local, store};
use quickstart::{files, model::model, terminal};
use std::{env, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};
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
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Error> {
    let (shutdown, log) = (Shutdown::new(), EventLogLayer::new());
    let store = store::open("serve")?;
    // The time after which the runs of a killed process are resumed.
    let suspend = SuspendLayer::new(Arc::new(store.clone())).lease(Duration::from_secs(5));
    let (agent, layers) = agent(&store, &log, &suspend)?;
    let sweeper = Sweeper::new(&suspend, agent.clone()).every(Duration::from_secs(1));
    tokio::spawn(sweeper.run(std::future::pending()));
    let threads = Threads::new()
        .threads(store.clone())
        .runs(store.clone())
        .events(&log)
        .shutdown(shutdown.clone());
    let me = Operator::new("local", [Tenant::default()]);
    let console = Console::loopback_only(
        |request| Some(request.extensions.get::<ConnectInfo<SocketAddr>>()?.0),
        me.content().decide().cancel().release(),
    )
    .runs(store.clone())
    .threads(store)
    .events(&log)
    .stack("files", layers)
    .replies(agent.clone())
    .shutdown(shutdown.clone());
    // Outside the layers of the endpoints, which allow other pages of this machine to read responses.
    let app = app(&agent, threads, &log, &shutdown).nest_service("/console", console);
    let listener = listen(&address()).await?;
    let address = listener.local_addr()?;
    let url = format!("http://{address}/agent");
    terminal::status(format_args!(
        "Listening on {url}\nTry it:\n\n  {}\n\nWatch it: http://{address}/console\n",
        local::curl(&url)
    ));

    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        local::stop_signal().await;
        // Runs in progress may complete within 10 seconds, and are then cancelled, not cut off.
        shutdown.begin(Duration::from_secs(10));
    });
    // Exit even if a client has stopped reading.
    let too_late = async {
        local::stop_signal().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
    };
    tokio::select! {
        result = server.into_future() => Ok(result?),
        () = too_late => Ok(()),
    }
}

fn app(agent: &BoxModel, threads: Threads, log: &EventLogLayer, shutdown: &Shutdown) -> Router {
    let ag_ui = AgUiLayer::new()
        .agent("files")
        .shutdown(shutdown.clone())
        .layer(agent.clone());
    let chat = UiMessagesLayer::new()
        .agent("files")
        .events(log)
        .shutdown(shutdown.clone());
    Router::new()
        .route_service("/agent", ag_ui)
        .nest_service("/agent/threads", threads)
        .nest_service("/chat", chat.layer(agent.clone()))
        .nest_service("/chat6", chat.sdk(Sdk::V6).layer(agent.clone()))
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
                // Only for local pages, because the agent reads local files.
                .layer(CorsLayer::very_permissive().allow_origin(local::origins()))
                .layer(axum::middleware::from_fn(local::only))
                // Limits the time to the response head, which the agent sends once it has read the
                // request. This bounds slow uploads, and does not affect streams.
                .layer(TimeoutLayer::with_status_code(
                    StatusCode::REQUEST_TIMEOUT,
                    Duration::from_secs(10),
                )),
        )
}

fn agent(
    store: &SqliteStore,
    log: &EventLogLayer,
    suspend: &SuspendLayer<SqliteStore>,
) -> Result<(BoxModel, String), Error> {
    let tools = files::tools(".")?
        .tool(files::write_file(".")?)
        .gate(Approval::for_tools("write_file"))
        .ledger(store.clone());
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log.clone())
        .layer(suspend.clone())
        .layer(ConversationLayer::new(store.clone()).history(Merge::ServerWins))
        .layer(RequestDefaultsLayer::new().system(
            "Answer questions about the files in the current folder. Inspect the files before you \
             answer. Be brief.",
        ))
        .layer(AgentLayer::new(tools).step_limit(16))
        .service(model()?);
    let layers = describe(&agent);
    Ok((BoxModel::new(agent), layers))
}

async fn listen(address: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|e| {
        let message = format!("cannot listen on {address}; set PORT or ADDR");
        Error::new(ErrorKind::Configuration, message).with_source(e)
    })
}

/// Returns `ADDR`, or `PORT` on the loopback interface.
fn address() -> String {
    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    env::var("ADDR").unwrap_or_else(|_| format!("127.0.0.1:{port}"))
}
