//! Threads and their runs over HTTP.

pub mod events;
mod outcome;
mod pages;
mod redis;
mod requests;
pub mod shared;
mod status;

use crate::support::{Answer, send};
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, Message, MessageId, RunId, ThreadId, Transcript,
    Turn,
    store::{RunKey, RunStore, StoreError, StoreFuture, StoredThread, Tenant, ThreadStore},
};
use concentric_http::ag_ui::Threads;
use concentric_layers::ConversationLayer;
use concentric_store::MemoryStore;
use concentric_test::{ScriptedModel, ScriptedTools};
use http_body_util::Full;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{ServiceBuilder, ServiceExt};

type Request = http::Request<Full<Bytes>>;

fn request(method: &str, path: &str) -> Request {
    http::Request::builder()
        .method(method)
        .uri(path)
        .body(Full::default())
        .unwrap()
}

fn get(path: &str) -> Request {
    request("GET", path)
}

fn by(tenant: &str, mut request: Request) -> Request {
    let tenant = Tenant(tenant.into());
    request.extensions_mut().insert(tenant);
    request
}

/// A cancellation, as a client sends it.
fn cancel(path: &str) -> Request {
    let mut request = request("POST", path);
    let json = "application/json".parse().unwrap();
    request.headers_mut().insert("content-type", json);
    request
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.json()["error"]["code"].as_str().map(str::to_owned);
    (answer.status, code.unwrap_or_default())
}

/// The context of a request of a client.
fn context(tenant: &str, thread: &str, run: &str) -> Context {
    let mut context = Context::builder()
        .thread_id(ThreadId::new(thread))
        .run_id(RunId::new(run))
        .build();
    let tenant = Tenant(tenant.into());
    context.extensions_mut().insert(tenant);
    context
}
