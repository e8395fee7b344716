//! Services that stall, respond slowly or only send keep-alive data, and slow consumers.

use crate::common::{CANARY, delta, finish, text};
use bytes::Bytes;
use concentric_core::{
    ChatRequest, ChatResponse, Context, Environment, Error, ErrorKind, Event, EventStream, Str,
    context::{Clock, Ids, Random, Sleep},
};
use concentric_providers::{AnthropicLayer, ApiKey, OpenAiLayer, OpenAiResponsesLayer, Timeouts};
use futures_util::{FutureExt, Stream, StreamExt, future::Either};
use http_body::{Body, Frame};
use http_body_util::Full;
use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{self, Poll},
    time::{Duration, SystemTime},
};
use tokio::{sync::mpsc, time::Instant};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxService};

/// A connection that buffers data until it is read.
struct Connection(mpsc::UnboundedReceiver<Bytes>);

impl Body for Connection {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.0.poll_recv(cx);
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Sends each chunk after a pause in seconds, and then closes the connection or leaves it open. The
/// task returns the time at which the client closed it.
fn serve(
    script: Vec<(u64, String)>,
    close: bool,
) -> (Connection, tokio::task::JoinHandle<Option<Duration>>) {
    let (send, receive) = mpsc::unbounded_channel();
    let begun = Instant::now();
    let server = tokio::spawn(async move {
        for (pause, piece) in script {
            tokio::select! {
                () = send.closed() => return Some(begun.elapsed()),
                () = tokio::time::sleep(Duration::from_secs(pause)) => {}
            }
            let _ = send.send(piece.into());
        }
        if close {
            return None;
        }
        send.closed().await;
        Some(begun.elapsed())
    });
    (Connection(receive), server)
}

const IDLE: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(60);

fn timeouts() -> Timeouts {
    Timeouts::off().idle(IDLE).progress(PROGRESS)
}

type Response = ChatResponse<EventStream>;

/// Calls a service that responds with `connection` after `head` seconds.
async fn call(
    timeouts: impl Into<Option<Timeouts>>,
    context: Context,
    head: u64,
    connection: Connection,
) -> Result<Response, Error> {
    let mut layer = OpenAiLayer::new("gpt-test", ApiKey::new(CANARY));
    if let Some(timeouts) = timeouts.into() {
        layer = layer.timeouts(timeouts);
    }
    let connection = std::sync::Mutex::new(Some(connection));
    let http = service_fn(|_: http::Request<Full<Bytes>>| {
        let connection = connection.lock().unwrap().take().unwrap();
        async move {
            tokio::time::sleep(Duration::from_secs(head)).await;
            Ok::<_, Infallible>(http::Response::new(connection))
        }
    });
    let request = ChatRequest::user("hi").with_context(context);
    let response = layer.layer(http).oneshot(request).await?;
    Ok(response.map_body(EventStream::new))
}

/// The result for a service with this script, and the elapsed seconds.
async fn run(timeouts: Timeouts, script: Vec<(u64, String)>) -> (Vec<Event>, Option<Error>, u64) {
    let begun = Instant::now();
    let (connection, server) = serve(script, false);
    let (events, error) = match call(timeouts, Context::new(), 0, connection).await {
        Ok(response) => read(response).await,
        Err(error) => {
            assert!(error.is_retryable());
            (Vec::new(), Some(error))
        }
    };
    let took = begun.elapsed().as_secs();
    // The connection is dropped immediately.
    assert_eq!(server.await.unwrap().unwrap().as_secs(), took);
    (events, error, took)
}

async fn read(
    response: ChatResponse<impl Stream<Item = Result<Event, Error>>>,
) -> (Vec<Event>, Option<Error>) {
    let mut body = pin!(response.body);
    let mut events = Vec::new();
    while let Some(item) = body.next().await {
        match item {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(body.next().await.is_none());
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

/// The code of a timeout.
fn code(error: Option<Error>) -> String {
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.provider(), Some("openai"));
    error.code().unwrap().to_owned()
}

fn text_event(text: &str) -> String {
    delta(&format!("{{\"content\":\"{text}\"}}"))
}

fn repeat(pause: u64, piece: &str, times: usize) -> Vec<(u64, String)> {
    vec![(pause, piece.to_owned()); times]
}

#[tokio::test(start_paused = true)]
async fn a_stall_before_the_head_times_out() {
    let begun = Instant::now();
    let (connection, server) = serve(Vec::new(), false);
    let error = call(timeouts(), Context::new(), 10_000, connection)
        .await
        .unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(code(Some(error)), "idle");
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(server.await.unwrap().unwrap().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_stall_before_the_first_byte_times_out() {
    let begun = Instant::now();
    let (connection, _server) = serve(Vec::new(), false);
    let error = call(timeouts(), Context::new(), 20, connection)
        .await
        .unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(code(Some(error)), "idle");
    // The head counts as a byte.
    assert_eq!(begun.elapsed().as_secs(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_stall_within_the_stream_times_out() {
    let script = vec![(5, text_event("a")), (25, text_event("b"))];
    let (events, error, took) = run(timeouts(), script).await;
    assert_eq!(text(&events), "ab");
    assert_eq!(code(error), "idle");
    assert_eq!(took, 60);
}

#[tokio::test(start_paused = true)]
async fn single_bytes_are_no_progress() {
    let mut script = vec![(5, text_event("a"))];
    script.extend(text_event("b").chars().map(|byte| (10, byte.to_string())));
    let (events, error, took) = run(timeouts(), script).await;
    assert_eq!(text(&events), "a");
    assert_eq!(code(error), "no_progress");
    assert_eq!(took, 65);
}

#[tokio::test(start_paused = true)]
async fn pings_are_no_progress() {
    let pings = [
        ": keep-alive\n\n",
        "\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: ping\ndata:\n\n",
        "data: {\"choices\":[]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"}}]}\n\n",
    ];
    for ping in pings {
        // Before the first content.
        let (events, error, took) = run(timeouts(), repeat(10, ping, 100)).await;
        assert!(events.is_empty());
        assert_eq!(code(error), "no_progress", "{ping}");
        assert_eq!(took, 60);
        // After the first content.
        let mut script = vec![(5, text_event("a"))];
        script.extend(repeat(10, ping, 100));
        let (events, error, took) = run(timeouts(), script).await;
        assert_eq!(text(&events), "a");
        assert_eq!(code(error), "no_progress", "{ping}");
        assert_eq!(took, 65);
    }
}

#[tokio::test(start_paused = true)]
async fn pings_reset_the_idle_timeout() {
    let mut script = repeat(20, ": keep-alive\n\n", 2);
    script.push((15, text_event("a")));
    script.extend(repeat(25, ": keep-alive\n\n", 2));
    script.push((5, text_event("b") + &finish("stop") + "data: [DONE]\n\n"));
    let (events, error, took) = run(timeouts(), script).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "ab");
    assert_eq!(took, 110);
}

#[tokio::test(start_paused = true)]
async fn hidden_content_is_progress() {
    // Token counts of hidden reasoning, and chunks of audio.
    let usage = |n| format!("data: {{\"choices\":[],\"usage\":{{\"completion_tokens\":{n}}}}}\n\n");
    let sound = delta(r#"{"audio":{"data":"AAAA"}}"#);
    let mut script: Vec<_> = (0..10).map(|n| (20, usage(n))).collect();
    script.extend(repeat(20, &sound, 10));
    script.push((20, finish("stop") + "data: [DONE]\n\n"));
    let (_, error, took) = run(timeouts(), script).await;
    assert!(error.is_none());
    assert_eq!(took, 420);
}

type Http = BoxService<http::Request<Full<Bytes>>, http::Response<Connection>, Infallible>;

/// The code of the error that ends a response with this script under `layer`, and the elapsed
/// seconds.
async fn ended<L, B>(layer: L, script: Vec<(u64, String)>) -> (Option<String>, u64)
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: Stream<Item = Result<Event, Error>>,
{
    let (connection, _server) = serve(script, true);
    let mut connection = Some(connection);
    let http = service_fn(move |_| {
        let response = http::Response::new(connection.take().unwrap());
        std::future::ready(Ok(response))
    });
    let begun = Instant::now();
    let answered = layer.layer(BoxService::new(http));
    let error = match answered.oneshot(ChatRequest::user("hi")).await {
        Ok(response) => {
            let events = pin!(response.body);
            let last = events.fold(None, async |_, event| Some(event)).await;
            last.unwrap().err()
        }
        Err(error) => Some(error),
    };
    let code = error.as_ref().and_then(Error::code).map(str::to_owned);
    (code, begun.elapsed().as_secs())
}

fn data(data: &[&str]) -> String {
    let events = data.iter().map(|data| format!("data: {data}\n\n"));
    events.collect()
}

#[tokio::test(start_paused = true)]
async fn anthropic_signatures_are_progress_and_pings_are_not() {
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let begin = [
        r#"{"type":"message_start","message":{"id":"msg_1","model":"m","content":[]}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
    ];
    let signature = r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#;
    let end = [
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    for (between, expected) in [
        (data(&[signature]), (None, 100)),
        (ping.to_owned(), (Some("no_progress".to_owned()), 60)),
    ] {
        let mut script = vec![(0, data(&begin))];
        script.extend(repeat(20, ping, 2));
        script.push((10, between));
        script.extend(repeat(20, ping, 2));
        script.push((10, data(&end)));
        let layer = AnthropicLayer::new("claude-test", ApiKey::new(CANARY)).timeouts(timeouts());
        assert_eq!(ended(layer, script).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_partial_image_is_progress() {
    let begin = [
        r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"image_generation_call","id":"ig_1","status":"in_progress"}}"#,
    ];
    let shown = r#"{"type":"response.image_generation_call.partial_image","output_index":0,"item_id":"ig_1","partial_image_index":0,"partial_image_b64":"QUJD"}"#;
    let alive =
        r#"{"type":"response.image_generation_call.generating","output_index":0,"item_id":"ig_1"}"#;
    let end = [
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"image_generation_call","id":"ig_1","status":"completed","result":"QUJD"}}"#,
        r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[]}}"#,
    ];
    for (between, expected) in [
        (shown, (None, 110)),
        (alive, (Some("no_progress".to_owned()), 60)),
    ] {
        let script = vec![
            (0, data(&begin)),
            (25, data(&[alive])),
            (25, data(&[between])),
            (25, data(&[alive])),
            (25, data(&[between])),
            (10, data(&end)),
        ];
        let layer = OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY)).timeouts(timeouts());
        assert_eq!(ended(layer, script).await, expected);
    }
}

/// Waits for the next event, stops before it arrives, and returns after `away` seconds.
async fn leave(body: &mut EventStream, away: u64) {
    assert!(body.next().now_or_never().is_none());
    tokio::time::sleep(Duration::from_secs(away)).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_of_available_data_is_no_stall() {
    let script = vec![
        (0, text_event("a")),
        (10, text_event("b")),
        (0, text_event("c")),
        (29, finish("stop")),
    ];
    let (connection, _server) = serve(script, true);
    let mut response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    let body = &mut response.body;
    assert!(matches!(body.next().await, Some(Ok(Event::TextDelta(t))) if t == "a"));
    leave(body, 3600).await;
    let (events, error) = read(response).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "bc");
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_of_pings_is_no_stall() {
    let mut script = vec![(0, text_event("a"))];
    // Sent while the consumer does not read.
    script.extend(repeat(10, ": keep-alive\n\n", 364));
    script.push((5, text_event("b") + &finish("stop")));
    let (connection, _server) = serve(script, true);
    let mut response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    let body = &mut response.body;
    assert!(matches!(body.next().await, Some(Ok(Event::TextDelta(t))) if t == "a"));
    leave(body, 3600).await;
    // The pings are read, and the response continues 45 seconds later.
    let (events, error) = read(response).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "b");
}

#[tokio::test(start_paused = true)]
async fn the_wait_resumes_when_the_consumer_returns() {
    let begun = Instant::now();
    let mut script = vec![(0, text_event("a"))];
    script.extend(repeat(10, ": keep-alive\n\n", 1000));
    let (connection, _server) = serve(script, true);
    let mut response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    let body = &mut response.body;
    assert!(matches!(body.next().await, Some(Ok(Event::TextDelta(t))) if t == "a"));
    leave(body, 3600).await;
    let (events, error) = read(response).await;
    assert!(events.is_empty());
    assert_eq!(code(error), "no_progress");
    // The first 10 seconds were a wait, so that 50 of the 60 seconds were left.
    assert_eq!(begun.elapsed().as_secs(), 3650);
}

#[tokio::test(start_paused = true)]
async fn a_stall_while_the_consumer_is_away_times_out() {
    let begun = Instant::now();
    let (connection, server) = serve(vec![(0, text_event("a"))], false);
    let mut response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    let body = &mut response.body;
    assert!(matches!(body.next().await, Some(Ok(Event::TextDelta(t))) if t == "a"));
    leave(body, 100).await;
    let (_, error) = read(response).await;
    assert_eq!(code(error), "idle");
    assert_eq!(begun.elapsed().as_secs(), 100);
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_total_time_is_limited() {
    let timeouts = timeouts().total(Duration::from_secs(95));
    let (events, error, took) = run(timeouts, repeat(10, &text_event("a"), 100)).await;
    assert_eq!(text(&events), "aaaaaaaaa");
    assert_eq!(code(error), "deadline");
    assert_eq!(took, 95);

    // The time of the consumer does not count.
    let (connection, _server) = serve(repeat(10, &text_event("a"), 8), true);
    let response = call(timeouts, Context::new(), 0, connection).await.unwrap();
    let mut body = response.body;
    for _ in 0..8 {
        assert!(body.next().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_secs(50)).await;
    }
    let end = body.next().await.unwrap().unwrap_err();
    assert_eq!(end.kind(), ErrorKind::Truncated);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_the_run_applies() {
    let begun = Instant::now();
    let context = Context::builder()
        .deadline(Environment::system().clock().now() + Duration::from_millis(25_500))
        .build();
    let (connection, _server) = serve(repeat(10, &text_event("a"), 100), false);
    let response = call(Timeouts::off(), context, 0, connection).await.unwrap();
    let (events, error) = read(response).await;
    assert_eq!(text(&events), "aa");
    assert_eq!(code(error), "deadline");
    // The deadline is a wall-clock time, which has advanced slightly in the meantime.
    assert!(matches!(begun.elapsed().as_secs(), 20..=25));
}

#[tokio::test(start_paused = true)]
async fn disabled_timeouts_do_not_apply() {
    const YEAR: u64 = 365 * 24 * 60 * 60;
    let script = vec![(YEAR, text_event("a")), (YEAR, finish("stop"))];
    let (connection, _server) = serve(script, true);
    let response = call(Timeouts::off(), Context::new(), YEAR, connection)
        .await
        .unwrap();
    let (events, error) = read(response).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a");
}

#[tokio::test(start_paused = true)]
async fn a_complete_response_ends_on_an_open_connection() {
    let (events, error, took) = run(timeouts(), vec![(5, text_event("a") + &finish("stop"))]).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a");
    assert!(events.last().is_some_and(Event::is_finish));
    assert_eq!(took, 35);
}

#[tokio::test(start_paused = true)]
async fn an_error_with_a_stalled_body_keeps_its_status() {
    let limits = [
        (timeouts(), 31),
        (timeouts().error(Duration::from_secs(5)), 5),
        (timeouts().error(Duration::from_secs(5)).total(IDLE / 10), 3),
        (Timeouts::default(), 5),
    ];
    for (timeouts, seconds) in limits {
        let layer = OpenAiLayer::new("gpt-test", ApiKey::new(CANARY)).timeouts(timeouts);
        let http = service_fn(|_: http::Request<Full<Bytes>>| {
            let (connection, _) = serve(vec![(1, "slow down".to_owned())], false);
            let response = http::Response::builder().status(429).body(connection);
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        let begun = Instant::now();
        let error = layer
            .layer(http)
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RateLimited);
        assert_eq!(error.message(), "slow down");
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_is_ten_minutes_or_the_profiles() {
    let layers = [
        (OpenAiLayer::new("gpt-test", ApiKey::new(CANARY)), 600),
        (
            OpenAiLayer::compatible("https://api.deepseek.com", "m", None),
            300,
        ),
        (
            OpenAiLayer::compatible("http://localhost:8080/v1", "m", None),
            600,
        ),
    ];
    for (layer, seconds) in layers {
        let begun = Instant::now();
        let http = service_fn(|_: http::Request<Full<Bytes>>| {
            std::future::pending::<Result<http::Response<Connection>, Infallible>>()
        });
        let error = layer
            .layer(http)
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some("idle"));
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_do_not_overflow() {
    let longest = Timeouts::off()
        .idle(Duration::MAX)
        .progress(Duration::MAX)
        .total(Duration::MAX);
    let script = vec![(1, text_event("a")), (3600, finish("stop"))];
    let (connection, _server) = serve(script, true);
    let response = call(longest, Context::new(), 0, connection).await.unwrap();
    let (events, error) = read(response).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a");
}

#[tokio::test(start_paused = true)]
async fn a_body_wakes_the_task_that_polled_last() {
    let (connection, _server) = serve(vec![(0, text_event("a")), (10, finish("stop"))], true);
    let mut response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    assert!(response.body.next().await.unwrap().is_ok());
    // Polled by this task first.
    assert!(response.body.next().now_or_never().is_none());
    let other = tokio::spawn(read(response));
    let (events, error) = other.await.unwrap();
    assert!(error.is_none());
    assert!(events.last().is_some_and(Event::is_finish));
}

#[tokio::test(start_paused = true)]
async fn a_wake_between_polls_is_not_lost() {
    // A different task waits at each poll, and incoming data wakes the last one.
    let mut script = vec![(0, text_event("a"))];
    script.extend((0..50).map(|n| (n % 3, text_event("b"))));
    script.push((1, finish("stop")));
    let (connection, _server) = serve(script, true);
    let response = call(timeouts(), Context::new(), 0, connection)
        .await
        .unwrap();
    let mut body = response.body;
    let mut said = 0;
    loop {
        let tick = pin!(tokio::time::sleep(Duration::from_millis(700)));
        match futures_util::future::select(tokio::task::unconstrained(body.next()), tick).await {
            Either::Left((Some(Ok(event)), _)) => {
                if event.is_finish() {
                    break;
                }
                said += 1;
            }
            Either::Left((other, _)) => panic!("{other:?}"),
            Either::Right(_) => {}
        }
    }
    assert_eq!(said, 51);
}

/// The system's clock, which counts its readings and timers.
#[derive(Clone, Default)]
struct Counting(Arc<[AtomicUsize; 2]>);

impl Counting {
    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|i| self.0[i].load(Ordering::Relaxed))
    }
}

impl Clock for Counting {
    fn now(&self) -> SystemTime {
        Environment::system().clock().now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        Environment::system().clock().sleep(duration)
    }

    fn monotonic(&self) -> Duration {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        Environment::system().clock().monotonic()
    }
}

impl Ids for Counting {
    fn next(&self, prefix: &str) -> Str {
        Environment::system().ids().next(prefix)
    }
}

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        0
    }
}

#[tokio::test(start_paused = true)]
async fn no_clock_is_read_while_bytes_arrive() {
    let clock = Counting::default();
    let environment = Environment::new(clock.clone(), clock.clone(), clock.clone());
    let context = Context::builder().environment(environment).build();

    // All data are available before the service receives the call.
    let mut script = repeat(0, &text_event("a"), 1000);
    script.push((0, finish("stop")));
    let (connection, server) = serve(script, true);
    server.await.unwrap();
    let response = call(timeouts(), context.clone(), 0, connection)
        .await
        .unwrap();
    let before = clock.counts();
    let mut body = response.body;
    // tokio occasionally makes a channel return `Pending`, to let other tasks run.
    while let Some(event) = tokio::task::unconstrained(body.next()).await {
        event.unwrap();
    }
    assert_eq!(clock.counts(), before);

    // Each chunk has to be awaited. A timer is set when the last one fires, not for each chunk.
    let mut script = repeat(1, &text_event("a"), 1000);
    script.push((1, finish("stop")));
    let (connection, _server) = serve(script, true);
    let before = clock.counts();
    let response = call(timeouts(), context, 0, connection).await.unwrap();
    let (events, _) = read(response).await;
    assert_eq!(text(&events).len(), 1000);
    let [_, sleeps] = clock.counts();
    assert!(sleeps - before[1] <= 1 + 1000 / 29, "{sleeps}");
}

#[tokio::test(start_paused = true)]
async fn a_wake_within_the_poll_is_not_lost() {
    let layer = OpenAiLayer::new("gpt-test", ApiKey::new(CANARY)).timeouts(timeouts());
    let http = service_fn(|_: http::Request<Full<Bytes>>| async {
        let mut yielded = 0;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            yielded += 1;
            if yielded > 5 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let (connection, _) = serve(vec![(0, text_event("a") + &finish("stop"))], true);
        Ok::<_, Infallible>(http::Response::new(connection))
    });
    let begun = Instant::now();
    let call = layer.layer(http).oneshot(ChatRequest::user("hi"));
    let (events, error) = read(call.await.unwrap()).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a");
    assert_eq!(begun.elapsed().as_secs(), 0);
}
