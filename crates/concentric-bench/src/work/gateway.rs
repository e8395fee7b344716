//! W5: a gateway between browsers and a provider, over real sockets.
//!
//! The provider, the gateway and the browsers each have a thread; only the gateway's CPU time is
//! measured. The provider sends each frame as an HTTP chunk of its own.

use super::{
    codec::frame,
    counters,
    script::{CHUNK, chunk},
    stream::count,
};
use crate::{bare, measure::time};
use axum::{Router, serve::ListenerExt};
use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, NoTools};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::inspect_events;
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use futures_util::future::select;
use http::{Method, Request};
use http_body_util::Full;
use std::{
    io,
    net::SocketAddr,
    pin::pin,
    thread,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep_until,
};
use tower::{ServiceBuilder, service_fn};

/// The number of connections in a closed loop.
const CONNECTIONS: usize = 16;

/// The number of text chunks in an answer.
const CHUNKS: usize = 50;

/// The time between frames of a paced provider.
const PACE: Duration = Duration::from_millis(2);

/// The time between requests of an open loop.
const INTERVAL: Duration = Duration::from_millis(100);

/// The number of samples, with both sides in turn.
const SAMPLES: usize = 3;

/// The figures for a number of answers.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The gateway's CPU time per answer, in microseconds.
    cpu: f64,
    /// The median wall time from a request to the first text, in microseconds.
    first: f64,
}

/// Returns the gateway's CPU time per answer in microseconds, with a provider that sends each answer
/// at once, and browsers that send one request after another.
pub(crate) fn closed(answers: usize) -> [f64; 2] {
    medians(|side| {
        let gateway = Gateway::start(side, None);
        runtime().block_on(async {
            gateway.closed(answers / 10).await;
            gateway.closed(answers).await
        })
    })
    .map(|taken| taken.cpu)
}

/// Returns the gateway's CPU time per answer and the wall time to the first text in microseconds, with
/// a provider that waits between frames, and ten requests per second.
pub(crate) fn paced(answers: usize) -> [[f64; 2]; 2] {
    let taken = medians(|side| {
        let gateway = Gateway::start(side, Some(PACE));
        runtime().block_on(async {
            gateway.open(3).await;
            gateway.open(answers).await
        })
    });
    [taken.map(|taken| taken.cpu), taken.map(|taken| taken.first)]
}

fn medians(of: impl Fn(Side) -> Taken) -> [Taken; 2] {
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        for (side, taken) in [Side::Bare, Side::Concentric].into_iter().zip(&mut taken) {
            taken.push(of(side));
        }
    }
    taken.map(|taken| Taken {
        cpu: time::median(taken.iter().map(|taken| taken.cpu).collect()),
        first: time::median(taken.iter().map(|taken| taken.first).collect()),
    })
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Bare,
    Concentric,
}

/// A server on a thread of its own, which ends when this is dropped.
struct Server {
    address: SocketAddr,
    // Requests for the CPU time of the thread.
    cpu: mpsc::UnboundedSender<oneshot::Sender<Duration>>,
}

impl Server {
    fn start<F>(serve: impl FnOnce(TcpListener) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()>,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has an address");
        let (cpu, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<Duration>>();
        thread::spawn(move || {
            runtime().block_on(async {
                listener.set_nonblocking(true).expect("it is a socket");
                let listener = TcpListener::from_std(listener).expect("it is a socket");
                let answers = async {
                    while let Some(request) = requests.recv().await {
                        let _ = request.send(time::of_thread());
                    }
                };
                select(pin!(serve(listener)), pin!(answers)).await;
            });
        });
        Self { address, cpu }
    }

    async fn cpu(&self) -> Duration {
        let (request, answer) = oneshot::channel();
        self.cpu.send(request).expect("the server runs");
        answer.await.expect("the server runs")
    }
}

struct Gateway {
    server: Server,
    _upstream: Server,
}

impl Gateway {
    fn start(side: Side, pace: Option<Duration>) -> Self {
        let upstream = Server::start(move |listener| provide(listener, pace));
        let address = upstream.address;
        let server = Server::start(move |listener| serve(listener, side, address));
        Self {
            server,
            _upstream: upstream,
        }
    }

    /// Reads `answers` over connections that each send one request after another.
    async fn closed(&self, answers: usize) -> Taken {
        self.measured(answers, async {
            let mut browsers = JoinSet::new();
            for browser in 0..CONNECTIONS {
                let address = self.server.address;
                browsers.spawn(async move {
                    let mut browser_ = Browser::connect(address).await;
                    let mut first = Vec::new();
                    for _ in (browser..answers).step_by(CONNECTIONS) {
                        first.push(browser_.answer(Instant::now()).await);
                    }
                    first
                });
            }
            browsers.join_all().await.concat()
        })
        .await
    }

    /// Reads `answers` whose requests are sent at fixed times.
    async fn open(&self, answers: usize) -> Taken {
        self.measured(answers, async {
            let start = Instant::now();
            let mut browsers = JoinSet::new();
            for at in (0..answers).map(|n| start + INTERVAL * u32::try_from(n).unwrap_or(0)) {
                let address = self.server.address;
                browsers.spawn(async move {
                    sleep_until(at.into()).await;
                    Browser::connect(address).await.answer(at).await
                });
            }
            browsers.join_all().await
        })
        .await
    }

    async fn measured(&self, answers: usize, work: impl Future<Output = Vec<Duration>>) -> Taken {
        counters::reset();
        let before = self.server.cpu().await;
        let first = work.await;
        let cpu = self.server.cpu().await - before;
        assert_eq!(first.len(), answers);
        counters::assert(5, (answers * CHUNKS * CHUNK) as u64, 0);
        Taken {
            cpu: micros(cpu) / answers as f64,
            first: time::median(first.into_iter().map(micros).collect()),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Serves the gateway.
async fn serve(listener: TcpListener, side: Side, upstream: SocketAddr) {
    let url = format!("http://{upstream}/v1");
    let client = HttpClient::new().expect("a client");
    let app = match side {
        Side::Bare => Router::new().route_service("/agent", bare_gateway(client, url)),
        Side::Concentric => {
            let model = ServiceBuilder::new()
                .layer(inspect_events(count::<0>))
                .layer(inspect_events(count::<1>))
                .layer(inspect_events(count::<2>))
                .layer(inspect_events(count::<3>))
                .layer(inspect_events(count::<4>))
                .layer(OpenAiLayer::compatible(
                    url,
                    "gpt-5.5",
                    Some(ApiKey::new("key")),
                ))
                .service(client);
            let agent = ServiceBuilder::new()
                .layer(AgUiLayer::new())
                .layer(AgentLayer::new(NoTools))
                .service(BoxModel::new(model));
            Router::new().route_service("/agent", agent)
        }
    };
    let listener = listener.tap_io(|connection| {
        connection.set_nodelay(true).expect("it is a socket");
    });
    axum::serve(listener, app).await.expect("it never ends");
}

fn bare_gateway(
    client: HttpClient,
    url: String,
) -> impl tower::Service<
    Request<axum::body::Body>,
    Response = axum::response::Response,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request| {
        let body =
            r#"{"model":"gpt-5.5","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
        let upstream = Request::builder()
            .method(Method::POST)
            .uri(format!("{url}/chat/completions"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .expect("a valid request");
        let client = client.clone();
        async move {
            let answer = bare::gateway::answer(client, upstream, request, count_all).await;
            Ok(answer.expect("an answer").map(axum::body::Body::new))
        }
    })
}

fn count_all(bytes: usize) {
    counters::text::<0>(bytes);
    counters::text::<1>(bytes);
    counters::text::<2>(bytes);
    counters::text::<3>(bytes);
    counters::text::<4>(bytes);
}

// ---- the provider ----

/// An answer as HTTP chunks: a role, the texts, a finish and the end.
fn answer() -> Vec<Vec<u8>> {
    let role = frame(r#"{"role":"assistant","content":""}"#, "null");
    let texts = (0..CHUNKS).map(|i| frame(&format!(r#"{{"content":"{}"}}"#, chunk(i)), "null"));
    let end = [frame("{}", r#""stop""#), "data: [DONE]\n\n".to_owned()];
    let frames = std::iter::once(role).chain(texts).chain(end);
    frames
        .map(|frame| format!("{:x}\r\n{frame}\r\n", frame.len()).into_bytes())
        .collect()
}

async fn provide(listener: TcpListener, pace: Option<Duration>) {
    loop {
        let (connection, _) = listener.accept().await.expect("a connection");
        // The gateway closes its connections when it ends.
        tokio::spawn(async move { provide_one(connection, pace).await });
    }
}

async fn provide_one(mut connection: TcpStream, pace: Option<Duration>) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let (frames, end) = (answer(), b"0\r\n\r\n");
    let whole = [head.as_bytes(), &frames.concat(), end].concat();
    let mut read = Vec::new();
    loop {
        while !read.ends_with(b"}") {
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        read.clear();
        let Some(pace) = pace else {
            connection.write_all(&whole).await?;
            continue;
        };
        connection.write_all(head.as_bytes()).await?;
        let mut at = Instant::now();
        for frame in &frames {
            connection.write_all(frame).await?;
            at += pace;
            sleep_until(at.into()).await;
        }
        connection.write_all(end).await?;
    }
}

// ---- the browsers ----

struct Browser {
    connection: TcpStream,
    request: String,
    read: Vec<u8>,
}

impl Browser {
    async fn connect(address: SocketAddr) -> Self {
        let connection = TcpStream::connect(address).await.expect("a connection");
        connection.set_nodelay(true).expect("it is a socket");
        let input =
            r#"{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"hi"}]}"#;
        let request = format!(
            "POST /agent HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{input}",
            input.len()
        );
        Self {
            connection,
            request,
            read: Vec::new(),
        }
    }

    /// Sends a request and reads the answer. Returns the time from `start` to the first text.
    async fn answer(&mut self, start: Instant) -> Duration {
        let sent = self.connection.write_all(self.request.as_bytes()).await;
        sent.expect("the gateway is connected");
        self.read.clear();
        let has = |read: &[u8], text: &str| memchr::memmem::find(read, text.as_bytes()).is_some();
        let mut first = None;
        while !self.read.ends_with(b"\r\n0\r\n\r\n") {
            let bytes = self.connection.read_buf(&mut self.read).await;
            assert!(bytes.expect("the gateway is connected") > 0, "cut off");
            if first.is_none() && has(&self.read, &chunk(0)) {
                first = Some(start.elapsed());
            }
        }
        assert!(
            has(&self.read, &chunk(CHUNKS - 1)),
            "the last chunk is missing"
        );
        first.expect("the first chunk is missing")
    }
}
