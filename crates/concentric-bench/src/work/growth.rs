//! Steps of W2 with extensions, and with budgets after a history.
//!
//! In these works, "bare" is Concentric without them.

use super::{
    counters, drive, noop,
    script::{Body, Script, respond},
    tools::expected,
};
use concentric_core::{
    AgentLayer, ChatRequest, ChatResponse, Error, Message, ModelService, Transcript, Turn,
};
use concentric_layers::budget::{BudgetPlugin, Limits};
use std::{
    future::Ready,
    sync::LazyLock,
    task::{Context, Poll},
};
use tower::ServiceBuilder;
use tower_service::Service;

const TURNS: usize = 10;
const SCRIPT: Script = Script::Calls {
    turns: TURNS,
    each: 1,
};

/// The largest number of messages before a run.
const MESSAGES: usize = 10_000;

/// Histories, by the number of messages of 120 bytes.
static HISTORIES: LazyLock<Vec<Transcript>> = LazyLock::new(|| {
    let mut history = Transcript::new();
    let mut histories = vec![history.clone()];
    for n in 0..MESSAGES {
        let text = format!("{n:<120}");
        history.push(match n % 2 {
            0 => Turn::user(text),
            _ => Turn::message(Message::assistant(text)).expect("a message without calls"),
        });
        histories.push(history.clone());
    }
    histories
});

fn history(messages: usize) -> &'static Transcript {
    HISTORIES.get(messages).expect("a history of this length")
}

/// The mock model, after a history of a number of turns.
#[derive(Clone, Debug)]
pub(super) struct Later(pub(super) Script, pub(super) usize);

impl Service<ChatRequest> for Later {
    type Response = ChatResponse<Body>;
    type Error = Error;
    type Future = Ready<Result<ChatResponse<Body>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        respond(self.0, request.transcript.len() - 1 - self.1)
    }
}

fn run(agent: impl ModelService<Error = Error>, count: u64) {
    counters::reset();
    drive::concentric(agent, count, expected(TURNS));
    counters::assert(0, 0, 0);
}

/// Adds the history before the user's message.
fn after(messages: usize) -> impl FnMut(ChatRequest) -> ChatRequest + Clone {
    move |mut request| {
        request.transcript = history(messages).clone();
        request.transcript.push_user("hi");
        request
    }
}

pub(crate) fn without_budgets<const MESSAGES: usize>(count: u64) {
    let agent = ServiceBuilder::new()
        .map_request(after(MESSAGES))
        .layer(AgentLayer::new(noop::toolset()).step_limit(TURNS as u32 + 1))
        .service(Later(SCRIPT, MESSAGES));
    run(agent, count);
}

pub(crate) fn with_budgets<const MESSAGES: usize>(count: u64) {
    let budget = BudgetPlugin::new(Limits::new().total_tokens(1 << 50).tool_calls(1 << 50));
    let tools = noop::toolset().layer(budget.tool());
    let agent = ServiceBuilder::new()
        .map_request(after(MESSAGES))
        .layer(budget.run())
        .layer(AgentLayer::new(tools).step_limit(TURNS as u32 + 1))
        .layer(budget.model())
        .service(Later(SCRIPT, MESSAGES));
    run(agent, count);
}

/// A value in the context.
#[derive(Clone)]
struct Extension<const I: usize>;

pub(crate) fn with_extensions(count: u64) {
    let agent = ServiceBuilder::new()
        .map_request(|mut request: ChatRequest| {
            let extensions = request.context.extensions_mut();
            extensions.insert(Extension::<0>);
            extensions.insert(Extension::<1>);
            extensions.insert(Extension::<2>);
            extensions.insert(Extension::<3>);
            extensions.insert(Extension::<4>);
            extensions.insert(Extension::<5>);
            extensions.insert(Extension::<6>);
            extensions.insert(Extension::<7>);
            extensions.insert(Extension::<8>);
            extensions.insert(Extension::<9>);
            request
        })
        .layer(AgentLayer::new(noop::toolset()).step_limit(TURNS as u32 + 1))
        .service(Later(SCRIPT, 0));
    run(agent, count);
}
