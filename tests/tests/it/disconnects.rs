//! Consumers that go away at random points of a run, many at a time: at once its request upstream
//! and its tools are gone, its observer is told of one end, and nothing of it is left behind.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_DISCONNECTS` | how many consumers go away | 10000 |
//! | `CONCENTRIC_SOCKET_DISCONNECTS` | the same, over sockets | 500 |
//! | `CONCENTRIC_SEED` | of what is random | random, and printed |

use crate::dice::{Dice, setting};
use crate::watched::{Permits, Run, Runs, agent, frames};
use bytes::Bytes;
use concentric_core::{BoxModel, ChatRequest, ChatResponse, Error, EventStream};
use concentric_providers::HttpClient;
use futures_util::{StreamExt, future::BoxFuture, stream};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{pending, poll_fn},
    io,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::WriteHalf},
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt, service_fn};

/// How many consumers there are at a time.
const CONSUMERS: usize = 100;

/// About how long a run takes, with what it waits for others.
const RUN: Duration = ms(300);

/// How long is waited for what must happen, before the test has failed.
const LIMIT: Duration = Duration::from_secs(60);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// ---- a consumer ----

/// When a consumer goes away: after so many polls, so many items, or so much time.
struct Leaves {
    polls: u64,
    items: u64,
    time: Duration,
}

impl Leaves {
    /// Of a run that takes about as long as `whole`. One that falls silent is left in any case.
    fn at_random(dice: &mut Dice, whole: Duration, is_silent: bool) -> Self {
        let whole = whole.as_micros() as u64;
        let never = u64::MAX;
        let (polls, items, micros) = match dice.below(3) {
            0 => (dice.below(120), never, never),
            1 => (never, dice.below(50), never),
            _ => (never, never, dice.below(whole)),
        };
        let micros = match is_silent {
            true => micros.min(whole),
            false => micros,
        };
        let time = Duration::from_micros(micros);
        Self { polls, items, time }
    }
}

type Call = BoxFuture<'static, Result<ChatResponse<EventStream>, Error>>;

/// A run as far as it has come.
enum Consumed {
    Call(Call),
    Body(EventStream),
}

/// Reads a run until it ends, or until its consumer leaves; and says where that is.
async fn consume(agent: &mut BoxModel, request: ChatRequest, leaves: &Leaves) -> (Consumed, bool) {
    let call = agent.ready().await.unwrap().call(request);
    let mut consumed = Consumed::Call(Box::pin(call));
    let mut time = Box::pin(sleep(leaves.time));
    let (mut polls, mut items, mut is_finished) = (0, 0, false);
    poll_fn(|cx| {
        while polls < leaves.polls && items < leaves.items {
            polls += 1;
            let polled = match &mut consumed {
                Consumed::Call(call) => match call.as_mut().poll(cx) {
                    Poll::Ready(response) => {
                        consumed = Consumed::Body(response.unwrap().body);
                        continue;
                    }
                    Poll::Pending => Poll::Pending,
                },
                Consumed::Body(body) => body.poll_next_unpin(cx),
            };
            match polled {
                Poll::Ready(Some(event)) => {
                    items += 1;
                    assert!(!is_finished, "something follows the end");
                    is_finished = event.unwrap().is_finish();
                }
                Poll::Ready(None) => break,
                Poll::Pending => {
                    ready!(time.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(())
    })
    .await;
    (consumed, is_finished)
}

/// Has a consumer read a run and go away, and returns where it was.
async fn disconnect(
    mut agent: BoxModel,
    request: ChatRequest,
    run: Arc<Run>,
    leaves: Leaves,
    over: Over,
) -> &'static str {
    let (consumed, is_finished) = consume(&mut agent, request, &leaves).await;
    let point = match &consumed {
        _ if is_finished => "at the end",
        Consumed::Call(_) => "before the first event",
        _ if !run.tools.is_empty() => "while tools run",
        _ if !run.upstream.is_empty() => "while the model speaks",
        _ => "in between",
    };
    drop(consumed);
    // It holds when the drop returns: nothing was waited for, and nothing else had its turn.
    assert_eq!(run.tools.len(), 0, "a tool lives on, {point}");
    match run.seen.lock().unwrap().ends.as_slice() {
        // It may leave while the observer is told.
        ["finished"] => assert!(is_finished || run.is_slow, "{point}"),
        ["dropped"] => assert!(!is_finished, "{point}"),
        ends => panic!("it ended {ends:?}, {point}"),
    }
    match over {
        Over::Nothing => assert_eq!(run.upstream.len(), 0, "a request lives on, {point}"),
        Over::Sockets => {
            run.upstream.close();
            let closed = timeout(LIMIT, run.upstream.wait()).await;
            closed.unwrap_or_else(|_| panic!("the service sees no end, {point}"));
        }
    }
    point
}

/// What is between the agent and the model's service.
#[derive(Clone, Copy)]
enum Over {
    Nothing,
    Sockets,
}

/// Waits until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            sleep(ms(1)).await;
        }
    };
    let held = timeout(LIMIT, holds).await;
    held.unwrap_or_else(|_| panic!("{what}"));
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// How many consumers went away where.
type Points = BTreeMap<&'static str, u64>;

/// Has so many consumers go away, [`CONSUMERS`] at a time, and sees to what they leave behind.
async fn disconnects(
    count: u64,
    agent: BoxModel,
    runs: &Runs,
    permits: &Permits,
    over: Over,
) -> Points {
    let dice = Dice::cast();
    let mut points = Points::new();
    let (mut ends, mut twice, mut tools, mut requests) = (0, 0, 0, 0);
    for first in (0..count).step_by(CONSUMERS) {
        let numbers = first..count.min(first + CONSUMERS as u64);
        let mut consumers = JoinSet::new();
        for number in numbers.clone() {
            let mut dice = dice.fork(number);
            let run = Arc::new(Run {
                is_slow: dice.below(4) == 0,
                is_silent: dice.below(4) == 0,
                ..Run::default()
            });
            let request = runs.begin(number, &run);
            let leaves = Leaves::at_random(&mut dice, RUN, run.is_silent);
            consumers.spawn(disconnect(agent.clone(), request, run, leaves, over));
        }
        for point in consumers.join_all().await {
            *points.entry(point).or_default() += 1;
        }
        for number in numbers {
            let run = runs.end(number);
            // With the run's context goes all that was in it.
            until("a run's context is kept", || Arc::strong_count(&run) == 1).await;
            let seen = run.seen.lock().unwrap();
            ends += seen.told;
            twice += seen.ends.len().saturating_sub(1);
            tools += run.tools.len();
            requests += run.upstream.len();
            assert_eq!((seen.ends.len(), seen.told), (1, 1), "run {number}");
        }
        permits.assert_all_back();
    }
    let way = match over {
        Over::Nothing => "in one process",
        Over::Sockets => "over sockets",
    };
    println!(
        "{count} consumers left {way}, {ends} ends reported, {twice} reported twice, {tools} tools \
         and {requests} requests left running"
    );
    for (point, left) in &points {
        println!("{left} of them left {point}, {way}");
    }
    assert_eq!(points.values().sum::<u64>(), count);
    points
}

// ---- in one process, on a clock of its own ----

#[tokio::test(start_paused = true)]
async fn f012_whoever_goes_away_takes_a_run_with_it_at_once() {
    let runs = Runs::default();
    let permits = Permits::new();
    let upstream = {
        let runs = runs.clone();
        service_fn(move |request: http::Request<Full<Bytes>>| {
            let runs = runs.clone();
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let (run, step) = runs.find(&body).unwrap();
                let open = run.upstream.token();
                sleep(ms(3)).await;
                let is_silent = run.is_silent && step == 0;
                let said = frames(step).into_iter().enumerate();
                let body = stream::unfold((said, open), move |(mut said, open)| async move {
                    let (at, frame) = said.next()?;
                    if is_silent && at == 3 {
                        pending::<()>().await;
                    }
                    sleep(ms(2)).await;
                    let frame = Frame::data(Bytes::from(frame));
                    Some((Ok::<_, Infallible>(frame), (said, open)))
                });
                Ok::<_, Infallible>(http::Response::new(StreamBody::new(body)))
            }
        })
    };
    let agent = agent("http://upstream/v1".to_owned(), upstream, &permits);
    let before = tasks();
    let count = setting("CONCENTRIC_DISCONNECTS", 10_000);
    let points = disconnects(count, agent, &runs, &permits, Over::Nothing).await;
    let is_everywhere = points.len() == 5 && points.values().all(|n| *n > count / 100);
    assert!(is_everywhere || count < 1_000, "{points:?}");
    until("a task lives on", || tasks() == before).await;
}

// ---- over sockets ----

/// Reads a request's body; `None`, if the client is gone.
async fn asked(connection: &mut TcpStream) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        if !matches!(connection.read_buf(&mut read).await, Ok(1..)) {
            return None;
        }
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(head) = head else { continue };
        let length = String::from_utf8_lossy(&read[..head])
            .lines()
            .find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.parse::<usize>().unwrap())
            });
        if read.len() == head + 4 + length.unwrap() {
            return Some(read.split_off(head + 4));
        }
    }
}

async fn answer(run: &Run, step: usize, connection: &mut WriteHalf<'_>) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    sleep(ms(1)).await;
    connection.write_all(head.as_bytes()).await?;
    for (at, frame) in frames(step).into_iter().enumerate() {
        if run.is_silent && step == 0 && at == 3 {
            pending::<()>().await;
        }
        sleep(ms(1)).await;
        let chunk = format!("{:x}\r\n{frame}\r\n", frame.len());
        connection.write_all(chunk.as_bytes()).await?;
    }
    connection.write_all(b"0\r\n\r\n").await
}

/// Answers what comes over a connection, until the client closes it.
async fn serve(mut connection: TcpStream, runs: Runs) {
    while let Some(body) = asked(&mut connection).await {
        // Its consumer may be gone before the request has come.
        let Some((run, step)) = runs.find(&body) else {
            continue;
        };
        let _open = run.upstream.token();
        let (mut reader, mut writer) = connection.split();
        let mut more = [0];
        let is_answered = tokio::select! {
            read = reader.read(&mut more) => {
                assert!(matches!(read, Ok(0) | Err(_)), "two requests at once");
                false
            }
            answered = answer(&run, step, &mut writer) => answered.is_ok(),
        };
        if !is_answered {
            return;
        }
    }
}

/// The sockets of a port that a process has open.
#[cfg(target_os = "linux")]
fn open_sockets(port: u16) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let is_open = |line: &&str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        // One that only the kernel still knows of has no inode.
        (columns[1].ends_with(&port) || columns[2].ends_with(&port)) && columns[9] != "0"
    };
    let lines = sockets.lines().skip(1).filter(is_open);
    lines.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f012_whoever_goes_away_closes_the_connection() {
    let before = tasks();
    let runs = Runs::default();
    let permits = Permits::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = TaskTracker::new();
    let server = tokio::spawn({
        let (runs, connections) = (runs.clone(), connections.clone());
        async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(serve(connection, runs.clone()));
            }
        }
    });

    let client = HttpClient::new().unwrap();
    let agent = agent(format!("http://{address}/v1"), client, &permits);
    let count = setting("CONCENTRIC_SOCKET_DISCONNECTS", 500);
    disconnects(count, agent, &runs, &permits, Over::Sockets).await;

    // The client is gone with the agent, and with it the connections that it has kept.
    connections.close();
    let closed = timeout(LIMIT, connections.wait()).await;
    closed.expect("the service sees the end of each connection");
    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    until("a task lives on", || tasks() == before).await;
    #[cfg(target_os = "linux")]
    assert_eq!(open_sockets(address.port()), Vec::<String>::new());
}
