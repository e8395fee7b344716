//! Clients that hold their connections: uploads that do not end, readers that do not read, and runs
//! that wait.
//!
//! Time is virtual, so that nothing waits for a time limit.

use crate::{
    endpoint::Endpoint,
    run::HEAP,
    stack::{self, Limits, Served},
};
use bytes::Bytes;
use concentric_core::{
    BoxError, BoxModel, ChatRequest, ChatResponse, Error, Event, FinishReason, Usage,
};
use futures_core::Stream;
use http::StatusCode;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use serde::{Deserialize, Serialize};
use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, Sleep, sleep, timeout},
};
use tower::{ServiceExt, service_fn};

/// The endpoints, by the name of their stage.
pub(crate) const ENDPOINTS: [Endpoint; 8] = [
    Endpoint::AgUi,
    Endpoint::Chat,
    Endpoint::Responses,
    Endpoint::UseChat,
    Endpoint::Console,
    Endpoint::Pages,
    Endpoint::Threads,
    Endpoint::Mcp,
];

/// The connections at a time.
const CLIENTS: usize = 1_000;

/// The first part of an upload, in bytes.
const PART: usize = 1 << 10;

/// The time between two further bytes.
const PACE: Duration = Duration::from_secs(10);

/// The time in which an upload must have ended, and in which a reader reads nothing.
const LONG: Duration = Duration::from_secs(60);

/// The text of an answer that a client does not read, in bytes.
const ANSWER: usize = 16 << 20;

/// The most heap that one client holds, in bytes.
const MOST: usize = 64 << 10;

/// The most heap that an answer takes that is not read, in bytes.
const MOST_UNREAD: usize = 4 << 20;

/// The figures of an endpoint.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The heap of each of many uploads that have not ended, in bytes.
    upload: Option<usize>,
    /// The seconds until the last of them was answered, and the number of those that were not.
    ended: u64,
    open_ended: usize,
    /// The heap of an answer that is not read, in bytes.
    unread: Option<usize>,
    /// The heap of each of many runs that wait, in bytes, and the number of those that were not refused.
    waiting: Option<usize>,
    accepted: usize,
}

impl Held {
    fn is_within(&self) -> bool {
        self.open_ended == 0
            && self.upload.is_none_or(|each| each <= MOST)
            && self
                .waiting
                .is_none_or(|each| each <= MOST && self.accepted > 0)
            && self.unread.is_none_or(|heap| heap <= MOST_UNREAD)
    }
}

/// Measures one kind of client of an endpoint.
pub(crate) fn one(endpoint: Endpoint, kind: &str) -> Result<Held, BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    runtime.block_on(async {
        match kind {
            "upload" => upload(endpoint).await,
            "unread" => unread(endpoint).await,
            _ => waiting(endpoint).await,
        }
    })
}

async fn upload(endpoint: Endpoint) -> Result<Held, BoxError> {
    // A page has no body, and no endpoint reads one that it does not need.
    if let Endpoint::Pages | Endpoint::Threads = endpoint {
        return Ok(Held::default());
    }
    let served = stack::behind(endpoint, Limits::Default, model(true))?;
    let _ = timeout(Duration::from_secs(1), first(endpoint, &served)).await;
    let before = HEAP.allocated();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let request = endpoint.post(stack::boxed(Slow {
            first: Some(Bytes::from(vec![b' '; PART])),
            next: Box::pin(sleep(PACE)),
        }));
        clients.spawn(served.clone().oneshot(request));
    }
    let start = Instant::now();
    sleep(Duration::from_secs(1)).await;
    let each = HEAP.allocated().saturating_sub(before) / CLIENTS;
    let all = async {
        while let Some(answered) = clients.join_next().await {
            let Ok(response) = answered?;
            if response.status() != StatusCode::REQUEST_TIMEOUT {
                return Err(format!("an upload was answered with {}", response.status()).into());
            }
        }
        Ok::<_, BoxError>(())
    };
    // Those that remain are counted.
    if let Ok(answered) = timeout(LONG, all).await {
        answered?;
    }
    Ok(Held {
        upload: Some(each),
        ended: start.elapsed().as_secs(),
        open_ended: clients.len(),
        ..Held::default()
    })
}

async fn unread(endpoint: Endpoint) -> Result<Held, BoxError> {
    if let Endpoint::Console | Endpoint::Pages | Endpoint::Threads | Endpoint::Mcp = endpoint {
        return Ok(Held::default());
    }
    let served = stack::behind(endpoint, Limits::Default, model(false))?;
    let before = HEAP.allocated();
    let first = first(endpoint, &served).await;
    if first.0 != 200 {
        return Err(format!("the request was answered with {}", first.0).into());
    }
    sleep(LONG).await;
    let heap = HEAP.max_allocated().saturating_sub(before);
    drop(first);
    Ok(Held {
        unread: Some(heap),
        ..Held::default()
    })
}

async fn waiting(endpoint: Endpoint) -> Result<Held, BoxError> {
    if let Endpoint::Console | Endpoint::Threads = endpoint {
        return Ok(Held::default());
    }
    let served = stack::behind(endpoint, Limits::Default, model(true))?;
    let before = HEAP.allocated();
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (served, accepted) = (served.clone(), Arc::clone(&accepted));
        clients.spawn(async move {
            accepted.fetch_add(1, Ordering::Relaxed);
            let (status, body) = first(endpoint, &served).await;
            match status {
                200 => std::future::pending().await,
                _ => accepted.fetch_sub(1, Ordering::Relaxed),
            };
            drop(body);
        });
    }
    sleep(Duration::from_secs(1)).await;
    let accepted = accepted.load(Ordering::Relaxed);
    let each = HEAP.allocated().saturating_sub(before) / accepted.max(1);
    Ok(Held {
        waiting: Some(each),
        accepted,
        ..Held::default()
    })
}

/// Reads a response up to its first text.
async fn first(endpoint: Endpoint, served: &Served) -> (u16, UnsyncBoxBody<Bytes, BoxError>) {
    let request = match endpoint {
        Endpoint::Pages => endpoint.request(Bytes::from_static(b"/changes")),
        Endpoint::Mcp => {
            let arguments = r#""name":"look","arguments":{"waits":true}"#;
            let body = endpoint.small().replace(r#""name":"look""#, arguments);
            endpoint.request(body.into())
        }
        _ => {
            let body = endpoint.small();
            let body = body.replace(r#""stream":false"#, r#""stream":true"#);
            endpoint.request(body.into())
        }
    };
    let responding = served.clone().oneshot(request.map(stack::boxed));
    // Erased, because the compiler cannot show that the service's own future is `Send` in a task.
    let responding: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(responding);
    let response: http::Response<_> = match responding.await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status().as_u16();
    let mut body = response.into_body();
    if status == 200 {
        let _ = body.frame().await;
    }
    (status, body)
}

/// A model that writes a text and then waits, or writes a long text without waiting.
fn model(waits: bool) -> BoxModel {
    BoxModel::new(service_fn(move |_: ChatRequest| async move {
        let left = match waits {
            true => 1,
            false => ANSWER / PART,
        };
        Ok::<_, Error>(ChatResponse::new(Written { left, waits }))
    }))
}

struct Written {
    /// The number of further texts.
    left: usize,
    waits: bool,
}

impl Stream for Written {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left > 0 {
            self.left -= 1;
            return Poll::Ready(Some(Ok(Event::text("x".repeat(PART)))));
        }
        match std::mem::replace(&mut self.waits, true) {
            true => Poll::Pending,
            false => Poll::Ready(Some(Ok(Event::finish(
                FinishReason::Stop,
                Usage::new(1, 1),
            )))),
        }
    }
}

/// An upload that never ends: a part, and then one byte at a time.
struct Slow {
    first: Option<Bytes>,
    next: Pin<Box<Sleep>>,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        ready!(self.next.as_mut().poll(cx));
        self.next.as_mut().reset(Instant::now() + PACE);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
    }
}

/// The figures of all endpoints.
pub(crate) struct Table(pub(crate) Vec<(Endpoint, Result<Held, String>)>);

impl Table {
    pub(crate) fn is_within(&self) -> bool {
        let is_within = |held: &Result<Held, String>| held.as_ref().is_ok_and(Held::is_within);
        self.0.iter().all(|(_, held)| is_within(held))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>12} {:>14} {:>12} {:>13} {:>9}",
            "clients", "upload, KiB", "answered in", "unread, KiB", "waiting, KiB", "accepted",
        )?;
        let kib = |bytes: Option<usize>, most: usize| match bytes {
            Some(bytes) => format!(
                "{:.1}{}",
                bytes as f64 / 1024.0,
                if bytes > most { "!" } else { "" }
            ),
            None => "-".to_owned(),
        };
        for (endpoint, held) in &self.0 {
            let name = format!("{endpoint:?}");
            let held = match held {
                Ok(held) => held,
                Err(error) => {
                    writeln!(f, "{name:<12} failed: {error}")?;
                    continue;
                }
            };
            let ended = match (held.upload, held.open_ended) {
                (None, _) => "-".to_owned(),
                (_, 0) => format!("{} s", held.ended),
                (_, left) => format!("never, {left}!"),
            };
            writeln!(
                f,
                "{name:<12} {:>12} {ended:>14} {:>12} {:>13} {:>9}",
                kib(held.upload, MOST),
                kib(held.unread, MOST_UNREAD),
                kib(held.waiting, MOST),
                match held.waiting {
                    Some(_) => held.accepted.to_string(),
                    None => "-".to_owned(),
                },
            )?;
        }
        Ok(())
    }
}

/// Adds the figures of one kind of client to those of the others.
pub(crate) fn merge(all: Held, one: Held) -> Held {
    Held {
        upload: all.upload.or(one.upload),
        ended: all.ended.max(one.ended),
        open_ended: all.open_ended + one.open_ended,
        unread: all.unread.or(one.unread),
        waiting: all.waiting.or(one.waiting),
        accepted: all.accepted + one.accepted,
    }
}
