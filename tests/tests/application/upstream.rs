//! The HTTP services that the application calls: OpenAI, Anthropic and the stock.

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tower::Service;

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How a provider responds to one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// An HTTP error, with `retry-after` in seconds.
    Status(u16, Option<u32>),
    /// An answer, in pieces.
    Text(Vec<String>),
    /// One call for each name, with its arguments.
    Calls(Vec<(&'static str, Value)>),
    /// The connection is closed after the pieces.
    Cut(Vec<String>),
    /// Nothing follows the pieces.
    Hang(Vec<String>),
}

impl Reply {
    pub fn text(text: &str) -> Self {
        Self::Text(vec![text.to_owned()])
    }
}

/// The services; its clones share the script and the record.
#[derive(Clone, Default)]
pub struct Upstream(Arc<State>);

#[derive(Default)]
struct State {
    openai: Provider,
    anthropic: Provider,
    stock: AtomicUsize,
}

#[derive(Default)]
pub struct Provider {
    script: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<String>>,
    open: Arc<AtomicUsize>,
}

impl Provider {
    /// Adds replies; after the last one, a provider answers `Done.`.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.script.lock().unwrap().extend(replies);
    }

    pub fn calls(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// The body of the last request.
    pub fn last(&self) -> String {
        self.requests.lock().unwrap().last().cloned().unwrap()
    }

    /// The number of responses that are being read.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn respond(&self, body: &Bytes, events: fn(&Reply) -> Vec<String>) -> Response<Body> {
        let request = String::from_utf8(body.to_vec()).unwrap();
        self.requests.lock().unwrap().push(request);
        let reply = self.script.lock().unwrap().pop_front();
        let reply = reply.unwrap_or_else(|| Reply::text("Done."));
        if let Reply::Status(status, after) = reply {
            let mut response = Response::builder().status(status);
            if let Some(after) = after {
                response = response.header("retry-after", after);
            }
            let body = r#"{"error":{"type":"error","message":"not now"}}"#;
            return response.body(whole(body.into())).unwrap();
        }
        let frames = events(&reply).into_iter();
        let frames = frames.map(|event| Ok(Frame::data(Bytes::from(event))));
        let end: BoxStream<'static, _> = match reply {
            Reply::Cut(_) => {
                let error = io::Error::new(io::ErrorKind::ConnectionReset, "reset");
                stream::iter([Err(error)]).boxed()
            }
            Reply::Hang(_) => stream::pending().boxed(),
            _ => stream::empty().boxed(),
        };
        let open = Open::new(&self.open);
        let frames = stream::iter(frames).chain(end).map(move |frame| {
            let _ = &open;
            frame
        });
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(UnsyncBoxBody::new(StreamBody::new(frames)))
            .unwrap()
    }
}

/// Counts a response until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn whole(text: String) -> Body {
    let body = Full::new(Bytes::from(text));
    UnsyncBoxBody::new(http_body_util::BodyExt::map_err(
        body,
        |never| match never {},
    ))
}

impl Upstream {
    pub fn openai(&self) -> &Provider {
        &self.0.openai
    }

    pub fn anthropic(&self) -> &Provider {
        &self.0.anthropic
    }

    /// The number of requests about the stock.
    pub fn stock(&self) -> usize {
        self.0.stock.load(Ordering::SeqCst)
    }
}

impl Service<Request<Full<Bytes>>> for Upstream {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let (head, body) = request.into_parts();
        // The bytes of a `Full` are there at once.
        let body = http_body_util::BodyExt::collect(body);
        let body = futures_util::FutureExt::now_or_never(body)
            .unwrap()
            .unwrap();
        let body = body.to_bytes();
        ready(Ok(match head.uri.host() {
            Some("stock") => {
                self.0.stock.fetch_add(1, Ordering::SeqCst);
                Response::new(whole("12 in stock".to_owned()))
            }
            Some("api.anthropic.com") => self.0.anthropic.respond(&body, anthropic),
            _ => self.0.openai.respond(&body, openai),
        }))
    }
}

fn openai(reply: &Reply) -> Vec<String> {
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!(
            "data: {}\n\n",
            json!({"id": "c1", "object": "chat.completion.chunk", "model": "gpt-5.5",
                "choices": [choice]})
        )
    };
    let text = |pieces: &[String]| -> Vec<String> {
        let piece = |piece: &String| chunk(json!({"content": piece}), Value::Null);
        pieces.iter().map(piece).collect()
    };
    let end = |reason: &str| {
        let usage = json!({"id": "c1", "object": "chat.completion.chunk", "model": "gpt-5.5",
            "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20}});
        let last = chunk(json!({}), json!(reason));
        [
            last,
            format!("data: {usage}\n\n"),
            "data: [DONE]\n\n".into(),
        ]
    };
    match reply {
        Reply::Text(pieces) => [text(pieces), end("stop").into()].concat(),
        Reply::Cut(pieces) | Reply::Hang(pieces) => text(pieces),
        Reply::Calls(calls) => {
            let calls = calls.iter().enumerate().map(|(index, (name, arguments))| {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                let call = json!({"index": index, "id": format!("call_{index}"),
                    "type": "function", "function": function});
                chunk(json!({"tool_calls": [call]}), Value::Null)
            });
            calls.chain(end("tool_calls")).collect()
        }
        Reply::Status(..) => Vec::new(),
    }
}

fn anthropic(reply: &Reply) -> Vec<String> {
    let event = |value: Value| {
        format!(
            "event: {}\ndata: {value}\n\n",
            value["type"].as_str().unwrap()
        )
    };
    let start = event(
        json!({"type": "message_start", "message": {"type": "message", "id": "m1",
        "role": "assistant", "model": "claude-opus-4-8", "content": [],
        "usage": {"input_tokens": 100, "output_tokens": 1}}}),
    );
    let open = event(json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "text", "text": ""}}));
    let Reply::Text(pieces) = reply else {
        panic!("only text is scripted for Anthropic");
    };
    let piece = |piece: &String| {
        event(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": piece}}))
    };
    let end = [
        event(json!({"type": "content_block_stop", "index": 0})),
        event(
            json!({"type": "message_delta", "usage": {"output_tokens": 20},
            "delta": {"stop_reason": "end_turn", "stop_sequence": null}}),
        ),
        event(json!({"type": "message_stop"})),
    ];
    [start, open]
        .into_iter()
        .chain(pieces.iter().map(piece))
        .chain(end)
        .collect()
}
