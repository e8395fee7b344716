//! A gateway: clients of OpenAI's API share two providers, each with its own quota and budget.
//!
//! ```console
//! $ cargo run --example gateway
//! $ curl -s http://127.0.0.1:8080/v1/chat/completions -H 'authorization: Bearer sk-ann' -H 'content-type: application/json' -d '{"model":"small","messages":[{"role":"user","content":"Hello!"}]}'
//! ```
//!
//! It is the application's own axum server. The providers are stand-ins, so it runs offline: `primary` is down
//! for messages with the word `outage`, and `secondary` answers them. Of each client, 20 requests in a minute and
//! 2,000 output tokens are answered; repeated requests are answered from earlier answers. `PORT` selects another
//! port; 0 a free one.

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use concentric::{
    BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason, Usage,
    chat::ResponseHead,
    http::{Shutdown, openai::OpenAi},
    layers::{
        FallbackLayer, RateLimitLayer, ResponseCacheLayer, RetryModel,
        budget::{Budget, BudgetPlugin, Limits},
        rate_limit::Quota,
        response_cache::CacheScope,
    },
    store::Tenant,
};
use concentric_examples::local;
use futures_util::stream;
use quickstart::terminal;
use serde_json::json;
use std::{env, process::ExitCode, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, retry::RetryLayer, service_fn};

/// A client of the gateway.
struct Client {
    name: &'static str,
    // A real gateway has `VirtualKeys`, whose secrets are not stored.
    key: &'static str,
    budget: Budget,
}

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("warn");
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
    let api = OpenAi::new()
        .model("small", model())
        .alias("gpt-4o-mini", "small")
        .shutdown(shutdown.clone());
    let clients = [("ann", "Bearer sk-ann"), ("eve", "Bearer sk-eve")].map(|(name, key)| Client {
        name,
        key,
        budget: Budget::new(Limits::new().output_tokens(2_000)),
    });
    let authenticate = middleware::from_fn_with_state(Arc::new(clients), authenticate);
    let app = Router::new().nest_service("/v1", api).layer(authenticate);

    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let address = listener.local_addr()?;
    terminal::status(format_args!("Listening on http://{address}/v1"));
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        local::stop_signal().await;
        shutdown.begin(Duration::from_secs(10));
    });
    Ok(server.await?)
}

/// Makes the client with the key the owner of the run, which its budget pays for.
async fn authenticate(
    State(clients): State<Arc<[Client; 2]>>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = request.headers().get(header::AUTHORIZATION);
    let client = clients
        .iter()
        .find(|client| key.is_some_and(|key| key == client.key));
    let Some(client) = client else {
        let error = json!({
            "message": "unknown key", "type": "invalid_request_error", "param": null,
            "code": "invalid_api_key",
        });
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": error}))).into_response();
    };
    let extensions = request.extensions_mut();
    extensions.insert(Tenant(client.name.into()));
    extensions.insert(client.budget.clone());
    next.run(request).await
}

/// The layers that all clients share, the outermost first.
fn model() -> BoxModel {
    let minute = Quota::per(Duration::from_secs(60));
    let budget = BudgetPlugin::new(Limits::new());
    let provider = |name| {
        let stack = ServiceBuilder::new()
            .layer(RetryLayer::new(RetryModel::new(2)))
            .layer(budget.model())
            .service(stand_in(name));
        BoxModel::new(stack)
    };
    let model = ServiceBuilder::new()
        .layer(
            RateLimitLayer::new(minute.requests(20))
                .by(|request| Tenant::of(&request.context).0)
                .wait(Duration::ZERO),
        )
        .layer(ResponseCacheLayer::new(CacheScope::Tenant))
        .layer(FallbackLayer::new("primary").or("secondary", provider("secondary")))
        .service(provider("primary"));
    BoxModel::new(model)
}

/// A provider that repeats the last message. A real one is a provider's layer over an HTTP client.
fn stand_in(name: &'static str) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| async move {
        let text = request.user_message().map(|message| message.text());
        let text = text.unwrap_or_default();
        if name == "primary" && text.contains("outage") {
            return Err(Error::new(ErrorKind::Overloaded, "the provider is down"));
        }
        let tokens = text.len() as u64 / 4 + 1;
        let (head, usage) = (
            ResponseHead::new(name, "stand-in"),
            Usage::new(tokens, tokens),
        );
        request.context.record_usage(&head, usage);
        let events = [
            Event::text(format!("{name}: ")),
            Event::text(text),
            Event::finish(FinishReason::Stop, usage),
        ];
        Ok::<_, Error>(ChatResponse::new(stream::iter(events.map(Ok))).with_head(head))
    }))
}
