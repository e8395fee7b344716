//! An async closure that captures is not `FnMut`: clone into an `async move` block instead.
use concentric_core::{BoxModel, ChatRequest, service::check_model};
use concentric_layers::{Next, from_fn};
use std::sync::Arc;
use tower::ServiceBuilder;

fn agent(model: BoxModel) {
    let tag: Arc<str> = "tag".into();
    check_model(
        ServiceBuilder::new()
            .layer(from_fn(async move |request: ChatRequest, mut next: Next| {
                println!("{tag}");
                next.run(request).await
            }))
            .service(model),
    );
}

fn main() {
    let _ = agent;
}
