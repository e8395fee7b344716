//! The loop calls its model many times, so the model must be `Clone`.
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, Event, NoTools, service::check_model,
};
use std::task::{Context, Poll};
use tower::{Service, ServiceBuilder};

struct Model {
    inner: BoxModel,
}

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<concentric_core::EventStream>;
    type Error = Error;
    type Future = <BoxModel as Service<ChatRequest>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        self.inner.call(request)
    }
}

fn agent(model: Model) {
    check_model(
        ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .service(model),
    );
}

fn main() {
    let _: Option<Event> = None;
    let _ = agent;
}
