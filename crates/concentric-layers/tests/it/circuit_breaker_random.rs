//! Random calls through a circuit breaker, compared with another implementation and with a simple model.
//!
//! A case that fails prints its seed: `BREAKER_SEED=17 BREAKER_CASES=1` runs it again. `BREAKER_CASES=100000` is
//! the long version.

use concentric_core::{
    ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason, Usage, context::Random as _,
};
use concentric_layers::{
    CircuitBreakerLayer,
    circuit_breaker::{CIRCUIT_OPEN, CircuitState},
};
use concentric_test::{SeededRandom, TestEnvironment};
use futures_util::{
    FutureExt, StreamExt,
    stream::{self, BoxStream},
};
use std::{
    env,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_resilience_circuitbreaker as oracle;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Success,
    Failure,
    Unknown,
}

/// A service whose answers the test ends.
struct Call {
    // Of a call whose future has not resolved.
    future: Option<oneshot::Sender<Result<BoxStream<'static, Item>, Error>>>,
    items: Option<mpsc::UnboundedSender<Item>>,
    running: Running,
}

type Item = Result<Event, Error>;
type Body = concentric_layers::circuit_breaker::CircuitBreakerBody<BoxStream<'static, Item>>;
type Future = std::pin::Pin<Box<dyn std::future::Future<Output = Result<Body, Error>>>>;

fn channel() -> (mpsc::UnboundedSender<Item>, BoxStream<'static, Item>) {
    let (send, receive) = mpsc::unbounded_channel();
    let items = stream::unfold(receive, async |mut receive| {
        receive.recv().await.map(|item| (item, receive))
    });
    (send, items.boxed())
}

enum Running {
    Future(task::Spawn<Future>),
    Body(Body),
}

/// Begins a call. `None` if the circuit rejects it, with the time until one may pass.
fn begin(
    layer: &CircuitBreakerLayer,
    request: ChatRequest,
    random: &SeededRandom,
) -> Result<Call, Option<Duration>> {
    let (send, receive) = oneshot::channel::<Result<BoxStream<'static, Item>, Error>>();
    let receive = Arc::new(Mutex::new(Some(receive)));
    let service = service_fn(move |_: ChatRequest| {
        let receive = receive.lock().unwrap().take().unwrap();
        async move { receive.await.unwrap().map(ChatResponse::new) }
    });
    let answer = layer.layer(service).oneshot(request);
    let future: Future = Box::pin(answer.map(|result| result.map(|response| response.body)));
    let mut future = task::spawn(future);
    if let std::task::Poll::Ready(result) = future.poll() {
        let error = result.err().unwrap();
        assert_eq!(error.code(), Some(CIRCUIT_OPEN));
        return Err(error.retry_after());
    }
    if random.next_u64().is_multiple_of(2) {
        return Ok(Call {
            future: Some(send),
            items: None,
            running: Running::Future(future),
        });
    }
    let (items, receive) = channel();
    let _ = send.send(Ok(receive));
    let body = future.now_or_never().unwrap().unwrap();
    let _ = items.send(Ok(Event::text("a")));
    Ok(Call {
        future: None,
        items: Some(items),
        running: Running::Body(body),
    })
}

impl Call {
    fn end(self, end: End, random: &SeededRandom) {
        let kind = match (end, random.next_u64() % 3) {
            // Dropped.
            (End::Unknown, 0) => return,
            (End::Unknown, 1) => ErrorKind::RateLimited,
            (End::Unknown, _) => ErrorKind::InvalidRequest,
            (_, 0) => ErrorKind::Overloaded,
            (_, 1) => ErrorKind::Connection,
            _ => ErrorKind::Server,
        };
        let error = Error::new(kind, "no");
        let is_cut = end == End::Failure && random.next_u64().is_multiple_of(4);
        let last = match end {
            End::Success => Ok(Event::finish(FinishReason::Stop, Usage::default())),
            _ => Err(error),
        };
        let mut body = match (self.running, self.future) {
            (Running::Future(mut future), Some(send)) => {
                let (items, receive) = channel();
                let is_error = last.is_err() && !is_cut && random.next_u64().is_multiple_of(2);
                if is_error {
                    let _ = send.send(Err(last.err().unwrap()));
                    assert!(future.poll().is_ready());
                    return;
                }
                let _ = send.send(Ok(receive));
                if !is_cut {
                    let _ = items.send(last);
                }
                future.now_or_never().unwrap().unwrap()
            }
            (Running::Body(body), _) => {
                let items = self.items.unwrap();
                if !is_cut {
                    let _ = items.send(last);
                }
                body
            }
            _ => unreachable!(),
        };
        // The senders are dropped.
        while let Some(item) = body.next().now_or_never().unwrap() {
            if item.is_err() || item.unwrap().is_finish() {
                break;
            }
        }
    }
}

fn below(random: &SeededRandom, bound: u64) -> u64 {
    random.next_u64() % bound
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Prints the seed of a case that panics.
struct PrintsSeed(u64);

impl Drop for PrintsSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("BREAKER_SEED={} BREAKER_CASES=1", self.0);
        }
    }
}

fn cases(case: impl Fn(u64)) {
    let (first, cases) = (number("BREAKER_SEED", 1), number("BREAKER_CASES", 200));
    for seed in first..first + cases {
        let _prints = PrintsSeed(seed);
        case(seed);
    }
}

/// The conditions that open a circuit.
#[derive(Clone, Copy, Debug)]
enum Opens {
    Rate(f64, u32),
    InARow(u32),
}

fn options(random: &SeededRandom) -> (Opens, u32) {
    let opens = match below(random, 2) {
        0 => Opens::InARow(1 + below(random, 5) as u32),
        _ => {
            let rates = [0.1, 0.3, 0.5, 0.75, 1.0];
            Opens::Rate(
                rates[below(random, 5) as usize],
                1 + below(random, 12) as u32,
            )
        }
    };
    (opens, 1 + below(random, 4) as u32)
}

fn layer((opens, probes): (Opens, u32)) -> CircuitBreakerLayer {
    let layer = CircuitBreakerLayer::new("a").probes(probes);
    match opens {
        Opens::InARow(failures) => layer.consecutive(failures),
        Opens::Rate(rate, calls) => layer.failure_rate(rate).minimum_calls(calls),
    }
}

#[test]
fn another_implementation_has_the_same_states() {
    cases(|seed| {
        let (random, env) = (SeededRandom::new(seed), TestEnvironment::with_seed(seed));
        let options = options(&random);
        // The other implementation has its own clock, so no call leaves the window, and no time is needed
        // until it is half open.
        let layer = layer(options).window(SECOND * 1_000_000);
        let other = oracle::CircuitBreakerLayer::builder()
            .sliding_window_type(oracle::SlidingWindowType::TimeBased)
            .sliding_window_duration(SECOND * 1_000_000)
            .wait_duration_in_open(Duration::ZERO)
            .permitted_calls_in_half_open(options.1 as usize);
        let other = match options.0 {
            Opens::InARow(failures) => other.consecutive_failures(failures as usize),
            Opens::Rate(rate, calls) => other
                .failure_rate_threshold(rate)
                .minimum_number_of_calls(calls as usize),
        };
        let (other, handle) = other.build_with_handle().unwrap();
        let mut other = other.layer(service_fn(|ends: oneshot::Receiver<bool>| async move {
            ends.await.unwrap().then_some(()).ok_or(())
        }));
        let mut open = Vec::new();
        for _ in 0..200 {
            let before = layer.state("");
            if open.is_empty() || below(&random, 2) == 0 {
                if before == CircuitState::Open {
                    assert!(begin(&layer, env.request("hi"), &random).is_err());
                    env.advance(SECOND * 1_000);
                }
                let ours = begin(&layer, env.request("hi"), &random);
                let (send, receive) = oneshot::channel();
                assert!(other.ready().now_or_never().unwrap().is_ok());
                let mut theirs = task::spawn(other.call(receive));
                let is_rejected = theirs.poll().is_ready();
                assert_eq!(ours.is_err(), is_rejected, "{before:?}");
                if let Ok(ours) = ours {
                    open.push((ours, send, theirs));
                }
            } else {
                let at = below(&random, open.len() as u64) as usize;
                let (ours, send, mut theirs) = open.swap_remove(at);
                let end = [End::Success, End::Failure, End::Unknown][below(&random, 3) as usize];
                ours.end(end, &random);
                if end != End::Unknown {
                    let _ = send.send(end == End::Success);
                    assert!(theirs.poll().is_ready());
                }
            }
            let state = match handle.state() {
                oracle::CircuitState::Closed => CircuitState::Closed,
                oracle::CircuitState::Open => CircuitState::Open,
                oracle::CircuitState::HalfOpen => CircuitState::HalfOpen,
            };
            assert_eq!(layer.state(""), state, "{options:?}");
            if state != before {
                // The other implementation also counts the calls of an earlier state.
                open.clear();
            }
        }
    });
}

/// A simple model: it keeps every call, and counts anew each time.
struct Model {
    opens: Opens,
    probes: usize,
    // The ended calls since the last change: the time, and whether it failed.
    ended: Vec<(Duration, bool)>,
    state: CircuitState,
    // The number of changes.
    age: usize,
    until: Option<Duration>,
    failed_probes: u32,
    // In the half open state: the times of the probes that hold a place.
    places: Vec<Duration>,
    last_probe: Duration,
}

const OPEN_FOR: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(45);
const WINDOW: Duration = Duration::from_secs(20);

impl Model {
    fn change(&mut self, state: CircuitState) {
        self.state = state;
        self.age += 1;
        self.ended.clear();
        self.places.clear();
    }

    /// Whether a call passes, with the age that its outcome counts for.
    fn begin(&mut self, now: Duration) -> Option<usize> {
        if self.state == CircuitState::Open && self.until.is_some_and(|until| now >= until) {
            self.change(CircuitState::HalfOpen);
            self.last_probe = now;
        }
        match self.state {
            CircuitState::Closed => Some(self.age),
            CircuitState::Open => None,
            CircuitState::HalfOpen => {
                let successes = self.ended.len();
                if self.places.len() + successes >= self.probes {
                    if now < self.last_probe + OPEN_FOR {
                        return None;
                    }
                    self.places.clear();
                }
                self.places.push(now);
                self.last_probe = now;
                Some(self.age)
            }
        }
    }

    /// Returns whether the circuit opens.
    fn end(&mut self, age: usize, end: End, now: Duration) -> bool {
        if age != self.age {
            return false;
        }
        match (self.state, end) {
            (CircuitState::Closed, End::Unknown) | (CircuitState::Open, _) => return false,
            (CircuitState::Closed, _) => {
                self.ended.push((now, end == End::Failure));
                let opens = match self.opens {
                    Opens::InARow(failures) => {
                        let failed = self.ended.iter().rev().take_while(|(_, failed)| *failed);
                        failed.count() >= failures as usize
                    }
                    Opens::Rate(rate, calls) => {
                        let part = |time: Duration| time.as_nanos() / (WINDOW / 10).as_nanos();
                        let recent = |time: &Duration| part(*time) + 10 > part(now);
                        let all = self.ended.iter().filter(|(time, _)| recent(time));
                        let count = all.clone().count();
                        let failed = all.filter(|(_, failed)| *failed).count();
                        count >= calls as usize && failed as f64 / count as f64 >= rate
                    }
                };
                if !opens {
                    return false;
                }
            }
            (CircuitState::HalfOpen, End::Unknown) => {
                self.places.pop();
                return false;
            }
            (CircuitState::HalfOpen, End::Success) => {
                self.places.pop();
                self.ended.push((now, false));
                if self.ended.len() == self.probes {
                    self.change(CircuitState::Closed);
                    self.failed_probes = 0;
                }
                return false;
            }
            (CircuitState::HalfOpen, End::Failure) => {}
        }
        self.change(CircuitState::Open);
        true
    }
}

#[test]
fn a_simple_model_has_the_same_states_at_the_same_times() {
    cases(|seed| {
        let (random, env) = (SeededRandom::new(seed), TestEnvironment::with_seed(seed));
        let options = options(&random);
        let layer = layer(options)
            .window(WINDOW)
            .open_for(OPEN_FOR)
            .longest_open(LONGEST);
        let mut model = Model {
            opens: options.0,
            probes: options.1 as usize,
            ended: Vec::new(),
            state: CircuitState::Closed,
            age: 0,
            until: None,
            failed_probes: 0,
            places: Vec::new(),
            last_probe: Duration::ZERO,
        };
        let now = || env.environment().clock().monotonic();
        let mut open = Vec::new();
        for _ in 0..300 {
            match below(&random, 40) {
                0 => {
                    layer.open("");
                    model.change(CircuitState::Open);
                    model.until = None;
                }
                1 | 2 => {
                    layer.close("");
                    model.change(CircuitState::Closed);
                    model.failed_probes = 0;
                }
                3..10 => env.advance(Duration::from_millis(below(&random, 12_000))),
                10..25 => {
                    let passes = model.begin(now());
                    let begun = begin(&layer, env.request("hi"), &random);
                    match (begun, passes) {
                        (Ok(call), Some(age)) => open.push((call, age)),
                        (Err(after), None) => {
                            let until = match model.state {
                                CircuitState::HalfOpen => Some(model.last_probe + OPEN_FOR),
                                _ => model.until,
                            };
                            assert_eq!(after.map(|after| now() + after), until);
                        }
                        (_, passes) => panic!("{passes:?} in {:?}", model.state),
                    }
                }
                _ if open.is_empty() => {}
                _ => {
                    let at = below(&random, open.len() as u64) as usize;
                    let (call, age) = open.swap_remove(at);
                    let end = [End::Success, End::Failure, End::Unknown, End::Failure]
                        [below(&random, 4) as usize];
                    call.end(end, &random);
                    if model.end(age, end, now()) {
                        let base = OPEN_FOR * 2_u32.pow(model.failed_probes.min(10));
                        let base = base.min(LONGEST);
                        model.failed_probes += 1;
                        let after = begin(&layer, env.request("hi"), &random).err();
                        let after = after.unwrap().unwrap();
                        // The random part is not known to the model.
                        assert!(after >= base && after <= base * 6 / 5, "{after:?}");
                        model.until = Some(now() + after);
                    }
                }
            }
            assert_eq!(layer.state(""), model.state, "{options:?}");
        }
    });
}
