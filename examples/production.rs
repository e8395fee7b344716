//! An AG-UI server with the layers of a production service, in their recommended order.
//!
//! ```console
//! $ cargo run --example production
//! $ curl -sN http://127.0.0.1:8080/agent -H 'authorization: Bearer ann-secret' ..
//! ```
//!
//! Two users share the server, and neither can read or resume the runs of the other. Personal data and credentials
//! are removed from questions, files and answers. A run has a budget; it falls back from one provider
//! to the other, with retries and a circuit breaker for each, and is completed if its client disconnects. Repeated
//! requests of a user are answered from a cache, and long conversations are summarised. Approvals, conversations
//! and memories are in a SQLite file (`CONCENTRIC_DB`, or `target/.production.db`). The providers are offline stand-ins in their own wire formats; with an
//! [`HttpClient`](concentric::providers::HttpClient) in their place, they are the real ones.
//!
//! The server listens on `127.0.0.1`, at the port `PORT` or 8080. Runs, model calls and tool calls are
//! logged to the console, as are their OpenTelemetry spans, without content.

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use concentric::{
    AgentLayer, BoxError, BoxModel, Context, Error,
    http::{Shutdown, admission::AdmissionLayer, ag_ui::AgUiLayer},
    layers::{
        budget::{BudgetPlugin, Limits},
        conversation::Merge,
        guard::{Parts, Rules, pii, secrets},
        rate_limit::Quota,
        response_cache::CacheScope,
        *,
    },
    store::Tenant,
    tools::Approval,
};
use concentric_examples::{local, services, spans, store};
use quickstart::{files, provider::Provider, terminal};
use std::{env, process::ExitCode, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, retry::RetryLayer, timeout::TimeoutLayer};
use tower_http::{sensitive_headers::SetSensitiveRequestHeadersLayer, trace::TraceLayer};

/// The users and their keys. A real service checks a session or a signed token.
const USERS: [(&str, &str); 2] = [("ann", "Bearer ann-secret"), ("eve", "Bearer eve-secret")];

#[tokio::main]
async fn main() -> ExitCode {
    spans::log("info");
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Error> {
    let shutdown = Shutdown::new();
    let server = ServiceBuilder::new()
        .layer(AdmissionLayer::new(200))
        .layer(AgUiLayer::new().agent("files").shutdown(shutdown.clone()))
        .service(agent()?);
    let secret = SetSensitiveRequestHeadersLayer::new([header::AUTHORIZATION]);
    let app = Router::new().route_service("/agent", server).layer(
        ServiceBuilder::new()
            .layer(secret)
            .layer(TraceLayer::new_for_http())
            .layer(middleware::from_fn(authenticate)),
    );
    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let address = listener.local_addr()?;
    terminal::status(format_args!("Listening on http://{address}/agent"));
    let stopped = async move {
        local::stop_signal().await;
        shutdown.begin(Duration::from_secs(10));
    };
    let server = axum::serve(listener, app).with_graceful_shutdown(stopped);
    Ok(server.await?)
}

/// Makes the user of the key the owner of the run.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request.headers().get(header::AUTHORIZATION);
    let is_key = |(_, known): &&(&str, &str)| key.is_some_and(|key| key == known);
    let Some((user, _)) = USERS.iter().find(is_key) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(Tenant((*user).into()));
    next.run(request).await
}

fn agent() -> Result<BoxModel, BoxError> {
    let store = store::open("production")?;
    let (log, otel) = (LogLayer::standard(), Otel::new());
    let budget = BudgetPlugin::new(Limits::new().model_calls(50).output_tokens(100_000));
    let guard = GuardLayer::new(Rules::new([pii::all(), secrets::all()].concat())?);
    let tools = files::tools(".")?
        .tool(files::write_file(".")?)
        .gate(Approval::for_tools("write_file"))
        .ledger(store.clone())
        .hooks(otel.tool())
        .hooks(log.clone());
    let user = |context: &Context| Some(Tenant::of(context).0);
    let anthropic = provider("anthropic", &budget)?;
    let summarizer = BoxModel::new(guard.layer(anthropic.clone()));
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log)
        .layer(guard.clone().output(Parts::ALL))
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(otel.run())
        .layer(ConversationLayer::new(store.clone()).history(Merge::ServerWins))
        .layer(budget.run())
        .layer(RequestDefaultsLayer::new().system("Answer questions about the files here."))
        .layer(DynamicMemoryLayer::new(store, user))
        .layer(AgentLayer::new(tools).step_limit(16))
        .layer(CompactionLayer::new(summarizer, 200_000))
        .layer(guard.input(Parts::USER | Parts::RESULTS))
        .layer(ResponseCacheLayer::new(CacheScope::Tenant))
        .layer(FallbackLayer::new("gemini").or("anthropic", anthropic))
        .service(provider("gemini", &budget)?);
    Ok(BoxModel::new(agent))
}

/// A model, with the layers that each attempt passes.
fn provider(name: &str, budget: &BudgetPlugin) -> Result<BoxModel, Error> {
    let missing = || Error::new(concentric::ErrorKind::Configuration, "unknown provider");
    let provider = Provider::stand_in(name).ok_or_else(missing)?;
    let http = TraceLayer::new_for_http().layer(services::stand_in());
    let model = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryModel::new(3)))
        .layer(CircuitBreakerLayer::new(name))
        .layer(Otel::new().model())
        .layer(LogLayer::minimal())
        .layer(RateLimitLayer::new(
            Quota::per(Duration::from_secs(60)).requests(600),
        ))
        .layer(budget.model())
        .layer(TimeoutLayer::new(Duration::from_secs(30)))
        .service(provider.over(http));
    Ok(BoxModel::new(model))
}
