//! A body is a stream of events, and not of strings.
use concentric_core::{ChatRequest, ChatResponse, Error, service::check_model};
use tower::{ServiceBuilder, service_fn};

fn main() {
    check_model(ServiceBuilder::new().service(service_fn(async |_: ChatRequest| {
        let body = futures_util::stream::iter([Ok::<String, Error>("hi".to_owned())]);
        Ok::<_, Error>(ChatResponse::new(body))
    })));
}
