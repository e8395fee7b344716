//! Consumers that disconnect, over real sockets: the time until the model's service is notified.
//!
//! The time starts just before the response is dropped, and ends when the service, on a thread of
//! its own, reads the end of the connection. A consumer disconnects before the first event or after
//! part of the stream. The service sends nothing more by then, so only the disconnect ends the
//! response.

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

/// The number of concurrent consumers.
const CONSUMERS: usize = 100;

/// The largest number of text chunks that a consumer waits for.
const CHUNKS: usize = 8;

/// The time limit for a connection to be closed after its consumer has disconnected.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns the wall time from a disconnect to the end of the connection in microseconds: the median
/// and the 99th percentile, each for the client alone and for an agent over it.
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
                let Reported { arrived, closed } = upstream.expect(run);
                let (client, url) = (client.clone(), upstream.url());
                let chunks = run % (CHUNKS + 1);
                let prompt = format!("run {run} of {chunks} chunks");
                let left = match is_agent {
                    false => leave(bare(client, url, prompt), chunks * WIRE, arrived).await,
                    true => leave(concentric(client, url, prompt), chunks * CHUNK, arrived).await,
                };
                let closed = timeout(LIMIT, closed).await;
                let closed = closed.expect("the connection is closed");
                taken.push(closed.expect("the end is reported").duration_since(left));
            }
            taken
        });
    }
    consumers.join_all().await.concat()
}

/// Calls an agent, and returns the number of text bytes in each event.
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
    let body = response.expect("a response").body;
    body.map(|event| match event.expect("the run must not fail") {
        Event::TextDelta(text) => text.len(),
        _ => 0,
    })
}

/// Calls the client alone, and returns the number of bytes in each frame.
async fn bare(client: HttpClient, url: String, prompt: String) -> impl Stream<Item = usize> {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
    let request = http::Request::post(url).body(Full::new(Bytes::from(body)));
    let response = client.oneshot(request.expect("a valid request")).await;
    let body = response.expect("a response").into_body();
    let frames = body.into_data_stream();
    frames.map(|frame| frame.expect("the connection must not break").len())
}

/// Waits for the given number of bytes of a response, or, for none, until the request has arrived.
/// Then drops the response, and returns the time just before the drop.
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
            unreachable!("a response without chunks");
        };
        let left = Instant::now();
        drop(call);
        return left;
    }
    let mut body = Box::pin(call.await);
    let mut seen = 0;
    while seen < bytes {
        seen += body.next().await.expect("the body does not end");
    }
    let left = Instant::now();
    drop(body);
    left
}

/// A model's service that sends as many chunks as a request asks for, and then nothing.
struct Upstream {
    address: SocketAddr,
    expected: Arc<Mutex<HashMap<usize, Reports>>>,
    _running: oneshot::Sender<()>,
}

/// The senders with which the service reports a request.
struct Reports {
    arrived: oneshot::Sender<()>,
    closed: oneshot::Sender<Instant>,
}

/// The receivers of a consumer.
struct Reported {
    arrived: oneshot::Receiver<()>,
    closed: oneshot::Receiver<Instant>,
}

fn lock(expected: &Mutex<HashMap<usize, Reports>>) -> MutexGuard<'_, HashMap<usize, Reports>> {
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

    fn expect(&self, run: usize) -> Reported {
        let (report_arrived, arrived) = oneshot::channel();
        let (report_closed, closed) = oneshot::channel();
        let reports = Reports {
            arrived: report_arrived,
            closed: report_closed,
        };
        lock(&self.expected).insert(run, reports);
        Reported { arrived, closed }
    }
}

async fn serve(listener: std::net::TcpListener, expected: Arc<Mutex<HashMap<usize, Reports>>>) {
    listener.set_nonblocking(true).expect("it is a socket");
    let listener = TcpListener::from_std(listener).expect("it is a socket");
    loop {
        let (connection, _) = listener.accept().await.expect("a connection");
        tokio::spawn(answer(connection, Arc::clone(&expected)));
    }
}

async fn answer(mut connection: TcpStream, expected: Arc<Mutex<HashMap<usize, Reports>>>) {
    let request = read_request(&mut connection).await.expect("a request");
    let (run, chunks) = request.expect("the request names its run");
    let reports = lock(&expected).remove(&run).expect("the run is expected");
    if chunks > 0 {
        let text = |i| frame(&format!(r#"{{"content":"{}"}}"#, chunk(i)), "null");
        let text: String = (0..chunks).map(text).collect();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let answer = format!("{head}{:x}\r\n{text}\r\n", text.len());
        let written = connection.write_all(answer.as_bytes()).await;
        written.expect("the consumer is connected");
    }
    // A consumer that waits for chunks has dropped the receiver.
    let _ = reports.arrived.send(());
    let read = connection.read(&mut [0]).await;
    let closed = Instant::now();
    assert!(matches!(read, Ok(0) | Err(_)), "unexpected input");
    let _ = reports.closed.send(closed);
}

/// Reads a request, and returns the number of its run and of the chunks that it asks for.
async fn read_request(connection: &mut TcpStream) -> io::Result<Option<(usize, usize)>> {
    let mut read = Vec::new();
    loop {
        if connection.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let request = String::from_utf8_lossy(&read);
        if let Some(parts) = request.split_once("run ")
            && request.ends_with('}')
        {
            let numbers = parts
                .1
                .split_once(" chunks")
                .and_then(|(n, _)| n.split_once(" of "));
            return Ok(numbers.and_then(|(run, n)| Some((run.parse().ok()?, n.parse().ok()?))));
        }
    }
}
