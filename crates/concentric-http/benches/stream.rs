//! The cost of one text delta from the agent's body to the response body. Run it under callgrind
//! and divide by the number of deltas.
//!
//! ```text
//! cargo bench -p concentric-http --bench stream --no-run
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*' <binary> 1000
//! ```
//!
//! The argument is the number of text deltas of 20 bytes (default 1000). The count includes the
//! rest of the run. The goal is 500 instructions per delta. `--ui-messages`, with that feature,
//! selects the protocol of `useChat` in place of AG-UI.

use bytes::Bytes;
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, FinishReason, MessageId, StepStart, Usage,
};
use concentric_http::ag_ui::AgUiLayer;
#[cfg(feature = "ui_messages")]
use concentric_http::ui_messages::UiMessagesLayer;
use futures_util::{FutureExt, stream};
use http_body::Body;
use http_body_util::Full;
use std::{
    convert::Infallible,
    hint::black_box,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tower::{Layer, Service, ServiceExt, service_fn};

const INPUT: &str =
    r#"{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"hi"}]}"#;

#[cfg(feature = "ui_messages")]
const CHAT: &str =
    r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"hi"}]}]}"#;

#[inline(never)]
fn measured<B: Body<Data = Bytes>>(mut body: Pin<&mut B>) -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    let mut bytes = 0;
    while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut cx) {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    bytes
}

fn main() {
    let count = std::env::args()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(1000);
    let agent = service_fn(move |_: ChatRequest| {
        let mut script: Vec<Result<Event, Error>> = Vec::with_capacity(count + 2);
        let start = StepStart::new(0, MessageId::new("msg_0123456789abcdef01"));
        script.push(Ok(Event::StepStart(Box::new(start))));
        script.extend((0..count).map(|_| Ok(Event::text("twenty bytes of text"))));
        script.push(Ok(Event::finish(FinishReason::Stop, Usage::new(3, 2))));
        std::future::ready(Ok::<_, Error>(ChatResponse::new(stream::iter(script))))
    });
    #[cfg(feature = "ui_messages")]
    if std::env::args().any(|arg| arg == "--ui-messages") {
        return run(UiMessagesLayer::new().layer(agent), CHAT, count);
    }
    run(AgUiLayer::new().layer(agent), INPUT, count);
}

fn run<S, B>(service: S, input: &'static str, count: usize)
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<B>, Error = Infallible>,
    B: Body<Data = Bytes>,
{
    let request = http::Request::post("/")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(input.as_bytes())))
        .expect("a request");
    let response = service.oneshot(request).now_or_never().expect("at once");
    let body = response.expect("infallible").into_body();
    let mut body = Box::pin(body);
    let bytes = measured(body.as_mut());
    println!("{count} events, {} bytes", black_box(bytes));
}
