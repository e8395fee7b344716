use crate::Cut;
use bytes::Bytes;
use concentric_core::{CallId, ChatRequest, Error, Event, Executor};
use concentric_replay::{self as replay, Observed};
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use std::{
    collections::HashMap,
    convert::Infallible,
    future::{Future, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};
use tower::service_fn;

/// Reads any bytes as an answer of `api`: what stands before the last byte of 0xff, which is in no
/// UTF-8, is the body, and what stands behind it says how the body comes.
///
/// So the body of a recording is an input, and comes in one piece.
///
/// # Panics
///
/// Something does not hold.
pub fn raw(api: &str, input: &[u8]) {
    let (body, how) = match input.iter().rposition(|byte| *byte == 0xff) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[][..]),
    };
    let (flags, lengths) = how.split_first().map_or((0, how), |(f, rest)| (*f, rest));
    let head = Head {
        content_type: match flags & 3 {
            0 => None,
            1 => Some("text/event-stream; charset=utf-8"),
            2 => Some("application/json"),
            _ => Some("application/x-ndjson"),
        },
        streaming: flags & 4 == 0,
        status: match flags >> 4 & 3 {
            0 => 200,
            1 => 429,
            2 => 400,
            _ => 529,
        },
    };
    let breaks = flags & 8 != 0;
    let body = Bytes::copy_from_slice(body);
    let whole = asked(api, head, Cut::whole(body.clone()).breaks(breaks));
    check(&whole, body.len());
    if lengths.is_empty() {
        return;
    }
    let cut = asked(api, head, Cut::new(body, lengths).breaks(breaks));
    assert_eq!(whole.events, cut.events, "the pieces make a difference");
    let kind = |observed: &Observed| observed.error.as_ref().map(Error::kind);
    assert_eq!(kind(&whole), kind(&cut), "the pieces make a difference");
}

/// What comes of an answer of `api` that is said to be of a type, asked for as a stream.
///
/// # Panics
///
/// There is no end of it.
pub fn ask(api: &str, content_type: &'static str, body: Cut) -> Observed {
    let head = Head {
        content_type: Some(content_type),
        streaming: true,
        status: 200,
    };
    asked(api, head, body)
}

#[derive(Clone, Copy, Debug)]
struct Head {
    content_type: Option<&'static str>,
    streaming: bool,
    status: u16,
}

fn asked(api: &str, head: Head, body: Cut) -> Observed {
    // One poll for each pause, and the last.
    let polls = body.len() + 4;
    let http = service_fn(move |_: http::Request<Full<Bytes>>| {
        let mut response = http::Response::new(body.clone());
        if let Some(value) = head.content_type {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        *response.status_mut() = StatusCode::from_u16(head.status).expect("a status");
        ready(Ok::<_, Infallible>(response))
    });
    let model = replay::model(api, "http://fuzz.test", head.streaming, http).expect("an API");
    ended(replay::observe(model, ChatRequest::user("hi")), polls)
}

/// What a future says that is polled at most so often.
fn ended<F: Future>(future: F, polls: usize) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("there is no end of it");
}

/// Checks what holds of any answer, made of a body of so many bytes.
///
/// # Panics
///
/// It does not.
pub fn check(observed: &Observed, bytes: usize) {
    assert_eq!(observed.broken, None, "{observed:?}");
    let mut size = 0;
    let mut begun: HashMap<u32, &CallId> = HashMap::new();
    let mut written: HashMap<&CallId, String> = HashMap::new();
    for event in &observed.events {
        size += match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                text.len()
            }
            Event::ToolCallDelta(delta) => delta.arguments.len(),
            // Its usage is of one size, whatever came.
            Event::Finish(_) => 0,
            event => serde_json::to_vec(event).map_or(0, |json| json.len() / 4),
        };
        match event {
            Event::ToolCallStart(start) => {
                begun.insert(start.index, &start.id);
                let twice = written.insert(&start.id, String::new());
                assert_eq!(twice, None, "a call is begun twice");
            }
            Event::ToolCallDelta(delta) => {
                let id = begun.get(&delta.index).expect("a call that was begun");
                let written = written.get_mut(id).expect("a call that was begun");
                written.push_str(&delta.arguments);
            }
            Event::ToolCall(event) => {
                let call = &event.call;
                let runs = matches!(call.executor, Executor::Loop | Executor::Client);
                assert!(!runs || observed.error.is_none(), "a call of no answer");
                if let Some(text) = written.get(&call.id).filter(|text| !text.is_empty()) {
                    assert_eq!(text, call.arguments.as_str(), "another call was shown");
                }
            }
            _ => {}
        }
    }
    let most = 8 * bytes + 1024;
    assert!(size <= most, "{size} bytes of events from {bytes}");
}
