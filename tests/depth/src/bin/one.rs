//! A stack with one layer.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, Event, FinishReason, NoTools, Usage,
};
use concentric_layers::inspect_events;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::{ServiceBuilder, ServiceExt, service_fn};

static EVENTS: AtomicUsize = AtomicUsize::new(0);

fn count(_: &Event) {
    EVENTS.fetch_add(1, Ordering::Relaxed);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let model = service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(futures_util::stream::iter([
            Ok(Event::text("hi")),
            Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        ])))
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(inspect_events(count))
        .service(model);
    let agent = BoxModel::new(agent);
    println!("{}", agent.describe());
    println!(
        "{}",
        agent.oneshot(ChatRequest::user("hi")).await?.text().await?
    );
    println!("{} events", EVENTS.load(Ordering::Relaxed));
    Ok(())
}
