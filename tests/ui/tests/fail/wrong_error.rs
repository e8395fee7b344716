//! A model's error must be one that can be boxed.
use concentric_core::{ChatRequest, ChatResponse, Error, Event, service::check_model};
use tower::service_fn;

struct MyError;

fn main() {
    check_model(service_fn(async |_: ChatRequest| {
        let body = futures_util::stream::iter([Ok::<Event, Error>(Event::text("hi"))]);
        Ok::<_, MyError>(ChatResponse::new(body))
    }));
}
