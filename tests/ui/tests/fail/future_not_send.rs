//! An agent that is shared between threads needs futures that are `Send`.
use concentric_core::{BoxModel, ChatRequest, ChatResponse, Error, Event};
use std::{rc::Rc, time::Duration};
use tower::service_fn;

async fn answer(
    _: ChatRequest,
) -> Result<ChatResponse<futures_util::stream::Empty<Result<Event, Error>>>, Error> {
    let count = Rc::new(1);
    std::future::poll_fn(|_| std::task::Poll::Ready(Duration::ZERO)).await;
    println!("{count}");
    Ok(ChatResponse::new(futures_util::stream::empty()))
}

fn main() {
    let _ = BoxModel::new(service_fn(answer));
}
