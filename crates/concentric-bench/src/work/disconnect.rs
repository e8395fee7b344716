//! Consumers that go away, over real sockets: how long it takes until their model's service knows.
//!
//! From just before the answer is dropped until the service, a thread of its own, reads the end of
//! the connection. A consumer leaves before the first event, or after some of the stream, and the
//! service is silent by then: nothing but the disconnect ends the answer.

use super::{
    codec::{WIRE, frame},
    script::{CHUNK, chunk},
};
use bytes::Bytes;
use concentric_core::{AgentLayer, ChatRequest, Event, NoTools};
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use futures_util::{
    Stream, StreamExt,
    future::{Either, select},
};
use http_body_util::{BodyExt, Full};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use tower::{ServiceBuilder, ServiceExt};

/// How many consumers there are at a time.
const CONSUMERS: usize = 100;

/// The most chunks of text that a consumer waits for.
const CHUNKS: usize = 8;

/// How long a connection may outlive its consumer before all is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// Microseconds of wall time from a disconnect to the end of the connection: the median and the
/// 99th percentile, each of the client alone and of an agent over it.
pub(crate) fn wall(disconnects: usize) -> [[f64; 2]; 2] {
    let runtime = runtime();
    let [bare, concentric] = [false, true].map(|is_agent| {
        let mut taken = runtime.block_on(taken(is_agent, disconnects));
        assert_eq!(taken.len(), disconnects);
        taken.sort_unstable();
        taken
    });
    [50, 99].map(|percent| {
        [&bare, &concentric].map(|taken| {
            let taken = taken.get((taken.len() * percent / 100).min(taken.len() - 1));
            taken.map_or(f64::NAN, |taken| taken.as_nanos() as f64 / 1e3)
        })
    })
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn taken(is_agent: bool, disconnects: usize) -> Vec<Duration> {
    let upstream = Arc::new(Upstream::start());
    let client = HttpClient::new().expect("a client");
    let mut consumers = JoinSet::new();
    for consumer in 0..CONSUMERS {
        let (upstream, client) = (Arc::clone(&upstream), client.clone());
        consumers.spawn(async move {
            let mut taken = Vec::new();
            for run in (consumer..disconnects).step_by(CONSUMERS) {
                let Waits { arrived, closed } = upstream.expect(run);
                let (client, url) = (client.clone(), upstream.url());
                let chunks = run % (CHUNKS + 1);
                let prompt = format!("run {run} of {chunks} chunks");
                let left = match is_agent {
                    false => leave(bare(client, url, prompt), chunks * WIRE, arrived).await,
                    true => leave(concentric(client, url, prompt), chunks * CHUNK, arrived).await,
                };
                let closed = timeout(LIMIT, closed).await;
                let closed = closed.expect("the connection is closed");
                taken.push(closed.expect("its end is told").duration_since(left));
            }
            taken
        });
    }
    consumers.join_all().await.concat()
}

/// The bytes of an answer, by a whole stack.
async fn concentric(client: HttpClient, url: String, prompt: String) -> impl Stream<Item = usize> {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(OpenAiLayer::compatible(
            url,
            "model",
            Some(ApiKey::new("key")),
        ))
        .service(client);
    let response = agent.oneshot(ChatRequest::user(prompt)).await;
    let body = response.expect("it is answered").body;
    body.map(|event| match event.expect("the run must not fail") {
        Event::TextDelta(text) => text.len(),
        _ => 0,
    })
}

/// The same, by the client alone.
async fn bare(client: HttpClient, url: String, prompt: String) -> impl Stream<Item = usize> {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
    let request = http::Request::post(url).body(Full::new(Bytes::from(body)));
    let response = client.oneshot(request.expect("it is well-formed")).await;
    let body = response.expect("it is answered").into_body();
    let frames = body.into_data_stream();
    frames.map(|frame| frame.expect("the connection must not break").len())
}

/// Waits for so many bytes of an answer, or until it is known that there will be none; and goes
/// away, just after the time that it returns.
async fn leave<B>(
    call: impl Future<Output = B>,
    bytes: usize,
    arrived: oneshot::Receiver<()>,
) -> Instant
where
    B: Stream<Item = usize>,
{
    let call = Box::pin(call);
    if bytes == 0 {
        let Either::Right((_, call)) = select(call, arrived).await else {
            unreachable!("nothing is answered");
        };
        let left = Instant::now();
        drop(call);
        return left;
    }
    let mut body = Box::pin(call.await);
    let mut seen = 0;
    while seen < bytes {
        seen += body.next().await.expect("the answer does not end");
    }
    let left = Instant::now();
    drop(body);
    left
}

/// A model's service that answers as much as it is asked for, and is silent then.
struct Upstream {
    address: SocketAddr,
    expected: Arc<Mutex<HashMap<usize, Tells>>>,
    _running: oneshot::Sender<()>,
}

/// Whom the service tells of a request.
struct Tells {
    arrived: oneshot::Sender<()>,
    closed: oneshot::Sender<Instant>,
}

/// Who is told.
struct Waits {
    arrived: oneshot::Receiver<()>,
    closed: oneshot::Receiver<Instant>,
}

fn lock(expected: &Mutex<HashMap<usize, Tells>>) -> MutexGuard<'_, HashMap<usize, Tells>> {
    expected.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upstream {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has an address");
        let expected = Arc::default();
        let (running, stopped) = oneshot::channel();
        let serve = serve(listener, Arc::clone(&expected));
        thread::spawn(move || {
            runtime().block_on(select(Box::pin(serve), stopped));
        });
        Self {
            address,
            expected,
            _running: running,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn expect(&self, run: usize) -> Waits {
        let (tells_arrived, arrived) = oneshot::channel();
        let (tells_closed, closed) = oneshot::channel();
        let tells = Tells {
            arrived: tells_arrived,
            closed: tells_closed,
        };
        lock(&self.expected).insert(run, tells);
        Waits { arrived, closed }
    }
}

async fn serve(listener: std::net::TcpListener, expected: Arc<Mutex<HashMap<usize, Tells>>>) {
    listener.set_nonblocking(true).expect("it is a socket");
    let listener = TcpListener::from_std(listener).expect("it is a socket");
    loop {
        let (connection, _) = listener.accept().await.expect("a connection");
        tokio::spawn(answer(connection, Arc::clone(&expected)));
    }
}

async fn answer(mut connection: TcpStream, expected: Arc<Mutex<HashMap<usize, Tells>>>) {
    let asked = asked(&mut connection).await.expect("a request");
    let (run, chunks) = asked.expect("it says how much");
    let tells = lock(&expected).remove(&run).expect("it is expected once");
    if chunks > 0 {
        let text = |i| frame(&format!(r#"{{"content":"{}"}}"#, chunk(i)), "null");
        let text: String = (0..chunks).map(text).collect();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let answer = format!("{head}{:x}\r\n{text}\r\n", text.len());
        let written = connection.write_all(answer.as_bytes()).await;
        written.expect("the consumer is still there");
    }
    // One that waits for chunks does not care.
    let _ = tells.arrived.send(());
    let read = connection.read(&mut [0]).await;
    let closed = Instant::now();
    assert!(matches!(read, Ok(0) | Err(_)), "nothing more is said");
    let _ = tells.closed.send(closed);
}

/// Reads a request, which names its run and how many chunks it wants.
async fn asked(connection: &mut TcpStream) -> io::Result<Option<(usize, usize)>> {
    let mut read = Vec::new();
    loop {
        if connection.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let request = String::from_utf8_lossy(&read);
        if let Some(asked) = request.split_once("run ")
            && request.ends_with('}')
        {
            let numbers = asked
                .1
                .split_once(" chunks")
                .and_then(|(n, _)| n.split_once(" of "));
            return Ok(numbers.and_then(|(run, n)| Some((run.parse().ok()?, n.parse().ok()?))));
        }
    }
}
