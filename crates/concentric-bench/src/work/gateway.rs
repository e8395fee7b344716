//! A gateway between clients and a provider, over real sockets: W5 for browsers, in AG-UI, and
//! `gateway` for clients of OpenAI.
//!
//! The provider, the gateway and the clients each have a thread; only the gateway's CPU time is
//! measured. The provider sends each frame as an HTTP chunk of its own.

use super::{
    codec::frame,
    counters,
    script::{CHUNK, chunk},
    stream::count,
};
use crate::{bare, measure::time};
use axum::{
    Router, extract,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    serve::ListenerExt,
};
use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, NoTools, store::Tenant};
use concentric_http::{ag_ui::AgUiLayer, openai::OpenAi};
use concentric_layers::{
    FallbackLayer, RateLimitLayer, ResponseCacheLayer, RetryModel,
    budget::{Budget, BudgetPlugin, Limits},
    inspect_events,
    rate_limit::Quota,
    response_cache::CacheScope,
};
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use futures_util::future::select;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
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
use tower::{ServiceBuilder, retry::RetryLayer, service_fn};

/// The number of connections in a closed loop.
const CONNECTIONS: usize = 16;

/// The number of text chunks in an answer.
const CHUNKS: usize = 50;

/// The time between frames of a paced provider.
const PACE: Duration = Duration::from_millis(2);

/// The time between requests of an open loop.
const INTERVAL: Duration = Duration::from_millis(100);

/// The same for clients of OpenAI: shorter, since a 99th percentile needs hundreds of answers.
const CHAT_INTERVAL: Duration = Duration::from_millis(25);

/// The number of samples, with both sides in turn.
const SAMPLES: usize = 3;

/// The key of the gateway's only client.
const KEY: &str = "Bearer sk-bench";

/// The figures for a number of answers.
#[derive(Clone, Debug)]
struct Taken {
    /// The gateway's CPU time per answer, in microseconds.
    cpu: f64,
    /// The wall times from the requests to their first texts, in microseconds.
    first: Vec<f64>,
}

/// Returns the gateway's CPU time per answer in microseconds, with a provider that sends each answer
/// at once, and browsers that send one request after another.
pub(crate) fn closed(answers: usize) -> [f64; 2] {
    let sides = [Between::BareBrowsers, Between::Browsers];
    taken(sides, |between| closed_loop(between, answers)).map(|taken| taken.cpu)
}

/// Returns the gateway's CPU time per answer and the wall time to the first text in microseconds, with
/// a provider that waits between frames, and ten requests per second.
pub(crate) fn paced(answers: usize) -> [[f64; 2]; 2] {
    let sides = [Between::BareBrowsers, Between::Browsers];
    let taken = taken(sides, |between| paced_loop(between, answers, INTERVAL));
    let cpu = [taken[0].cpu, taken[1].cpu];
    [cpu, taken.map(|taken| time::median(taken.first))]
}

/// Returns the figure of [`closed`] for clients of OpenAI.
pub(crate) fn chat_closed(answers: usize) -> [f64; 2] {
    let sides = [Between::BareChats, Between::Chats];
    taken(sides, |between| closed_loop(between, answers)).map(|taken| taken.cpu)
}

/// Returns the gateway's CPU time per answer, and the time that it adds to the first text at the 99th
/// percentile of all samples, in microseconds, for clients of OpenAI, with a provider as in [`paced`] and
/// 40 requests per second.
///
/// The added time is that of a request less the median of requests to the provider itself.
pub(crate) fn chat_paced(answers: usize) -> [[f64; 2]; 2] {
    let sides = [Between::Nothing, Between::BareChats, Between::Chats];
    let [direct, bare, concentric] =
        taken(sides, |between| paced_loop(between, answers, CHAT_INTERVAL));
    let direct = time::median(direct.first);
    let cpu = [bare.cpu, concentric.cpu];
    let added = [bare, concentric].map(|taken| percentile(taken.first, 99) - direct);
    [cpu, added]
}

fn closed_loop(between: Between, answers: usize) -> Taken {
    let gateway = Gateway::start(between, None);
    runtime().block_on(async {
        gateway.closed(answers / 10).await;
        gateway.closed(answers).await
    })
}

fn paced_loop(between: Between, answers: usize, interval: Duration) -> Taken {
    let gateway = Gateway::start(between, Some(PACE));
    runtime().block_on(async {
        gateway.open(3, interval).await;
        gateway.open(answers, interval).await
    })
}

/// Returns the median CPU time and all times to the first texts of several samples, with the sides in
/// turn.
fn taken<const N: usize>(sides: [Between; N], of: impl Fn(Between) -> Taken) -> [Taken; N] {
    let mut taken = sides.map(|_| Vec::new());
    for _ in 0..SAMPLES {
        for (side, taken) in sides.into_iter().zip(&mut taken) {
            taken.push(of(side));
        }
    }
    taken.map(|taken| Taken {
        cpu: time::median(taken.iter().map(|taken| taken.cpu).collect()),
        first: taken.into_iter().flat_map(|taken| taken.first).collect(),
    })
}

/// Returns the least value that at least `percent` percent of all values do not exceed.
fn percentile(mut taken: Vec<f64>, percent: usize) -> f64 {
    taken.sort_by(f64::total_cmp);
    let at = (taken.len() * percent).div_ceil(100).saturating_sub(1);
    taken.get(at).copied().unwrap_or(f64::NAN)
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// What the clients connect to.
#[derive(Clone, Copy, Debug)]
enum Between {
    /// A gateway for browsers, on plain tower.
    BareBrowsers,
    Browsers,
    /// A gateway for clients of OpenAI, on plain tower.
    BareChats,
    Chats,
    /// The provider itself, with requests of clients of OpenAI.
    Nothing,
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
    between: Between,
    server: Server,
    _upstream: Option<Server>,
}

impl Gateway {
    fn start(between: Between, pace: Option<Duration>) -> Self {
        let upstream = Server::start(move |listener| provide(listener, pace));
        if let Between::Nothing = between {
            return Self {
                between,
                server: upstream,
                _upstream: None,
            };
        }
        let address = upstream.address;
        let server = Server::start(move |listener| serve(listener, between, address));
        Self {
            between,
            server,
            _upstream: Some(upstream),
        }
    }

    /// Reads `answers` over connections that each send one request after another.
    async fn closed(&self, answers: usize) -> Taken {
        self.measured(answers, async {
            let mut clients = JoinSet::new();
            for at in 0..CONNECTIONS {
                let (address, between) = (self.server.address, self.between);
                clients.spawn(async move {
                    let mut client = Client::connect(address, between).await;
                    let mut first = Vec::new();
                    for _ in (at..answers).step_by(CONNECTIONS) {
                        first.push(client.answer(Instant::now()).await);
                    }
                    first
                });
            }
            clients.join_all().await.concat()
        })
        .await
    }

    /// Reads `answers` whose requests are sent at fixed times.
    async fn open(&self, answers: usize, interval: Duration) -> Taken {
        self.measured(answers, async {
            let start = Instant::now();
            let mut clients = JoinSet::new();
            for at in (0..answers).map(|n| start + interval * u32::try_from(n).unwrap_or(0)) {
                let (address, between) = (self.server.address, self.between);
                clients.spawn(async move {
                    sleep_until(at.into()).await;
                    Client::connect(address, between).await.answer(at).await
                });
            }
            clients.join_all().await
        })
        .await
    }

    async fn measured(&self, answers: usize, work: impl Future<Output = Vec<Duration>>) -> Taken {
        counters::reset();
        let before = self.server.cpu().await;
        let first = work.await;
        let cpu = self.server.cpu().await - before;
        assert_eq!(first.len(), answers);
        if let Between::BareBrowsers | Between::Browsers = self.between {
            counters::assert(5, (answers * CHUNKS * CHUNK) as u64, 0);
        }
        Taken {
            cpu: micros(cpu) / answers as f64,
            first: first.into_iter().map(micros).collect(),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Serves the gateway.
async fn serve(listener: TcpListener, between: Between, upstream: SocketAddr) {
    let url = format!("http://{upstream}/v1");
    let client = HttpClient::new().expect("a client");
    let app = match between {
        Between::BareBrowsers => Router::new().route_service("/agent", bare_gateway(client, url)),
        Between::BareChats => keyed(bare_chats(client, &url)),
        Between::Chats | Between::Nothing => keyed(chats(&client, &url)),
        Between::Browsers => {
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

/// The gateway of the example `gateway`, whose limits this client does not reach.
fn chats(client: &HttpClient, url: &str) -> Router {
    let budget = BudgetPlugin::new(Limits::new());
    let provider = || {
        let key = Some(ApiKey::new("key"));
        let stack = ServiceBuilder::new()
            .layer(RetryLayer::new(RetryModel::new(2)))
            .layer(budget.model())
            .layer(OpenAiLayer::compatible(url, "gpt-5.5", key))
            .service(client.clone());
        BoxModel::new(stack)
    };
    let minute = Quota::per(Duration::from_secs(60));
    let model = ServiceBuilder::new()
        .layer(
            RateLimitLayer::new(minute.requests(10_000_000))
                .by(|request| Tenant::of(&request.context).0)
                .wait(Duration::ZERO),
        )
        .layer(ResponseCacheLayer::new(CacheScope::Tenant))
        .layer(FallbackLayer::new("primary").or("secondary", provider()))
        .service(provider());
    let api = OpenAi::new().model("gpt-5.5", BoxModel::new(model));
    Router::new().nest_service("/v1", api)
}

fn bare_chats(client: HttpClient, url: &str) -> Router {
    let url = format!("{url}/chat/completions");
    let chats = service_fn(move |request: extract::Request| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let answer = bare::gateway::chat(client, url, request).await;
            Ok::<_, std::convert::Infallible>(answer.expect("an answer").map(axum::body::Body::new))
        }
    });
    Router::new().route_service("/v1/chat/completions", chats)
}

/// Checks the key of each request, and makes its client the owner of the run.
fn keyed(app: Router) -> Router {
    let budget = Budget::new(Limits::new().output_tokens(u64::MAX / 2));
    app.layer(middleware::from_fn_with_state(budget, authenticate))
}

async fn authenticate(
    extract::State(budget): extract::State<Budget>,
    mut request: extract::Request,
    next: Next,
) -> Response {
    let key = request.headers().get(header::AUTHORIZATION);
    if key.is_none_or(|key| key != KEY) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let extensions = request.extensions_mut();
    extensions.insert(Tenant("bench".into()));
    extensions.insert(budget);
    next.run(request).await
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
        while !is_whole(&read) {
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

/// Whether all of a request has arrived.
fn is_whole(read: &[u8]) -> bool {
    let Some(head) = memchr::memmem::find(read, b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(read.get(..head + 4).unwrap_or_default());
    let (_, length) = head
        .split_once("content-length: ")
        .expect("the body has a length");
    let length = length.lines().next().unwrap_or_default();
    let length: usize = length.parse().expect("it is a number");
    read.len() >= head.len() + length
}

// ---- the clients ----

struct Client {
    connection: TcpStream,
    address: SocketAddr,
    between: Between,
    read: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr, between: Between) -> Self {
        let connection = TcpStream::connect(address).await.expect("a connection");
        connection.set_nodelay(true).expect("it is a socket");
        Self {
            connection,
            address,
            between,
            read: Vec::new(),
        }
    }

    fn request(&self) -> String {
        // No answer is that of an earlier request.
        static REQUESTS: AtomicUsize = AtomicUsize::new(0);
        let (path, body) = match self.between {
            Between::BareBrowsers | Between::Browsers => (
                "/agent",
                r#"{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"hi"}]}"#
                    .to_owned(),
            ),
            _ => {
                let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
                let messages = format!(
                    r#"{{"role":"system","content":"Be brief."}},{{"role":"user","content":"hi {request:07}"}}"#
                );
                let body = format!(r#"{{"model":"gpt-5.5","messages":[{messages}],"stream":true}}"#);
                ("/v1/chat/completions", body)
            }
        };
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: {KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
    }

    /// Sends a request and reads the answer. Returns the time from `start` to the first text.
    async fn answer(&mut self, start: Instant) -> Duration {
        let request = self.request();
        let sent = self.connection.write_all(request.as_bytes()).await;
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
