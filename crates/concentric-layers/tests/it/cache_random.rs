//! Random readers of cached and shared calls, with errors, cuts and delays, in virtual time.
//!
//! A case that fails prints its seed: `CACHE_SEED=17 CACHE_CASES=1` runs it again. `CACHE_CASES=100000` is the
//! long version.

use concentric_core::{
    BoxModel, CancelReason, ChatRequest, Context, Error, ErrorKind, Event, EventStream,
    FinishReason, ResponseHead, SideEffects, Usage, context::Random as _, store::Tenant,
};
use concentric_layers::{
    CommitLayer, FallbackLayer, RetryModel,
    budget::{Amounts, Budget, BudgetPlugin, Limits},
    response_cache::{CacheControl, CacheScope, LAGGED, Replayed, ResponseCacheLayer},
};
use concentric_test::{ScriptedModel, SeededRandom, TestEnvironment};
use futures_util::StreamExt;
use std::{
    collections::BTreeMap,
    env,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio_test::task::{self, Spawn};
use tower::{Layer, ServiceExt, retry::RetryLayer, service_fn};

/// The tenant and the text of a request.
type Key = (String, String);

/// A call that reached the model.
struct Attempt {
    key: Key,
    run: String,
    scripted: ScriptedModel,
    pieces: usize,
    usage: Usage,
    is_good: bool,
    is_endless: bool,
    /// The turn and the time in which the cache received its finish.
    finished: Option<(u64, SystemTime)>,
    /// The turn in which it failed, and its error.
    failed: Option<(u64, Error)>,
}

/// A request and the part of its answer that it received.
#[derive(Default)]
struct Reader {
    key: Key,
    run: String,
    called: Option<u64>,
    is_replayed: bool,
    /// The attempts and the indices of their pieces.
    pieces: Vec<(usize, usize)>,
    usage: Option<Usage>,
    error: Option<(bool, Error)>,
    has_ended: bool,
}

struct Case {
    random: SeededRandom,
    env: TestEnvironment,
    turn: AtomicU64,
    ttl: Duration,
    // Whether a request may make a call while an equal one is in progress.
    is_single: bool,
    is_big: bool,
    attempts: Mutex<Vec<Attempt>>,
    readers: Mutex<Vec<Reader>>,
}

impl Case {
    fn below(&self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn one_in(&self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn pause(&self) -> Duration {
        Duration::from_nanos(self.below(4_000_000_000))
    }

    fn now(&self) -> SystemTime {
        self.env.context().now()
    }

    fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    fn attempts(&self) -> MutexGuard<'_, Vec<Attempt>> {
        self.attempts.lock().unwrap()
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.readers.lock().unwrap()
    }

    fn live(&self, key: Option<&Key>) -> usize {
        let attempts = self.attempts();
        let of_key = attempts
            .iter()
            .filter(|it| key.is_none_or(|key| it.key == *key));
        of_key.map(|it| it.scripted.live()).sum()
    }

    fn error(&self) -> Error {
        use ErrorKind::*;
        let kinds = [
            Server,
            RateLimited,
            Connection,
            Overloaded,
            Other,
            Authentication,
        ];
        let mut error = Error::new(kinds[self.below(6) as usize], "injected");
        if self.one_in(6) {
            error = error.with_effects(SideEffects::Possible);
        }
        error
    }

    /// Begins an attempt with a random answer, whose pieces of text have the attempt's index.
    fn begin(&self, request: &ChatRequest) -> (usize, ScriptedModel) {
        let context = &request.context;
        let key = (
            Tenant::of(context).0.to_string(),
            request.user_message().unwrap().text(),
        );
        let run = context.run_id().to_string();
        assert!(
            !context.is_cancelled(),
            "a shared call is cancelled with a run"
        );
        assert_eq!(
            context.deadline(),
            None,
            "a shared call has the deadline of a run"
        );
        let is_controlled = context.extensions().get::<CacheControl>().is_some();
        if self.is_single && !is_controlled {
            assert_eq!(self.live(Some(&key)), 0, "two calls for equal requests");
            let now = self.now();
            let is_fresh = |at: SystemTime| now.duration_since(at).unwrap() < self.ttl;
            let mut stored = self.attempts.lock().unwrap();
            let known = stored.iter_mut().any(|it| {
                it.key == key && it.is_good && it.finished.is_some_and(|(_, at)| is_fresh(at))
            });
            assert!(!known, "a call although an answer is stored");
        }
        let index = self.attempts().len();
        let usage = Usage::new(1 + index as u64, 1);
        let head = ResponseHead::new("scripted", "scripted-1");
        let mut script = ScriptedModel::new().head(head).usage(usage);
        let pieces = self.below(5) as usize;
        let padding = match self.is_big {
            true => " ".repeat(40_000),
            false => String::new(),
        };
        let mut is_good = pieces > 0;
        for piece in 0..pieces {
            match self.below(6) {
                0 | 1 => script = script.sleep(self.pause()),
                2 => script = script.pause(),
                _ => {}
            }
            let text = format!("{index}.{piece}{padding};").into();
            script = script.event(match self.below(8) {
                0 => {
                    is_good = false;
                    Event::RefusalDelta(text)
                }
                1..=3 => Event::ReasoningDelta(text),
                _ => Event::TextDelta(text),
            });
        }
        if self.one_in(3) {
            script = script.sleep(self.pause());
        }
        let mut is_endless = false;
        script = match self.below(12) {
            0..=5 => script,
            6 => {
                is_good = false;
                let finish = Event::finish(FinishReason::Length, usage);
                script.event(finish)
            }
            7..=9 => script.error(self.error()),
            10 => script.end_early(),
            _ => {
                is_endless = true;
                script.never()
            }
        };
        self.attempts().push(Attempt {
            key,
            run,
            scripted: script.clone(),
            pieces,
            usage,
            is_good,
            is_endless,
            finished: None,
            failed: None,
        });
        (index, script)
    }

    fn model(self: &Arc<Self>) -> BoxModel {
        let case = Arc::clone(self);
        BoxModel::new(service_fn(move |request: ChatRequest| {
            let case = Arc::clone(&case);
            async move {
                let (index, scripted) = case.begin(&request);
                let failing = Arc::clone(&case);
                let fail = move |error: Error| {
                    let failed = (failing.turn(), error.clone());
                    failing.attempts()[index].failed = Some(failed);
                    error
                };
                let response = scripted.oneshot(request).await.map_err(&fail)?;
                Ok::<_, Error>(
                    response.map_body(|body| {
                        EventStream::new(body.map(move |item| item.map_err(&fail)))
                    }),
                )
            }
        }))
    }

    /// The model in random layers, with the cache outside.
    fn stack(self: &Arc<Self>, plugin: &BudgetPlugin, cache: &ResponseCacheLayer) -> BoxModel {
        let candidate = || {
            let counted = BoxModel::new(plugin.model().layer(self.model()));
            let held = match self.below(4) {
                0 => BoxModel::new(CommitLayer::whole().layer(counted)),
                1 => BoxModel::new(CommitLayer::first_sentence().layer(counted)),
                _ => counted,
            };
            match self.one_in(2) {
                true => held,
                false => {
                    let policy = RetryModel::new(1 + self.below(3) as u32)
                        .backoff(self.pause() / 2, self.pause() * 2);
                    BoxModel::new(RetryLayer::new(policy).layer(held))
                }
            }
        };
        let inner = match self.one_in(3) {
            false => candidate(),
            true => {
                let fallback = FallbackLayer::new("0").or("1", candidate());
                BoxModel::new(fallback.layer(candidate()))
            }
        };
        BoxModel::new(cache.layer(self.noting(inner)))
    }

    /// Notes when the cache has received the whole of an attempt, which a layer inside may hold.
    fn noting(self: &Arc<Self>, inner: BoxModel) -> BoxModel {
        let case = Arc::clone(self);
        BoxModel::new(service_fn(move |request: ChatRequest| {
            let (case, inner) = (Arc::clone(&case), inner.clone());
            async move {
                let response = inner.oneshot(request).await?;
                let mut index = None;
                Ok::<_, Error>(response.map_body(|body| {
                    EventStream::new(body.inspect(move |item| match item {
                        Ok(Event::TextDelta(text) | Event::ReasoningDelta(text)) => {
                            let (attempt, _) = text.split_once('.').unwrap();
                            index = attempt.parse::<usize>().ok();
                        }
                        Ok(Event::Finish(_)) => {
                            let now = (case.turn(), case.now());
                            if let Some(index) = index {
                                case.attempts()[index].finished = Some(now);
                            }
                        }
                        _ => {}
                    }))
                }))
            }
        }))
    }

    /// Makes a request, and reads its answer with pauses.
    async fn read(self: Arc<Self>, at: usize, model: BoxModel, request: ChatRequest) {
        if self.one_in(2) {
            let pause = self.pause() * 2;
            self.env.environment().clock().sleep(pause).await;
        }
        let is_slow = self.one_in(3);
        self.readers()[at].called = Some(self.turn());
        let response = match model.oneshot(request).await {
            Ok(response) => response,
            Err(error) => {
                let mut readers = self.readers();
                (readers[at].error, readers[at].has_ended) = (Some((true, error)), true);
                return;
            }
        };
        self.readers()[at].is_replayed = response.extensions.get::<Replayed>().is_some();
        let mut body = response.body;
        loop {
            if is_slow && self.one_in(2) {
                let pause = self.pause();
                self.env.environment().clock().sleep(pause).await;
            }
            let item = body.next().await;
            let mut readers = self.readers();
            let reader = &mut readers[at];
            match item {
                Some(Ok(
                    Event::TextDelta(text)
                    | Event::ReasoningDelta(text)
                    | Event::RefusalDelta(text),
                )) => {
                    for text in text.split_terminator(';') {
                        let (attempt, piece) = text.trim_end().split_once('.').unwrap();
                        let piece = (attempt.parse().unwrap(), piece.parse().unwrap());
                        reader.pieces.push(piece);
                    }
                }
                Some(Ok(Event::Finish(finish))) => {
                    assert!(reader.usage.is_none(), "two finishes");
                    reader.usage = Some(finish.usage);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => reader.error = Some((false, error)),
                None => {
                    reader.has_ended = true;
                    return;
                }
            }
        }
    }
}

type Task = Spawn<Pin<Box<dyn Future<Output = ()>>>>;

/// The number of cases with each event, so that the test shows that all occur.
#[derive(Debug, Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn add(&mut self, name: &'static str, is_seen: bool) {
        *self.0.entry(name).or_default() += u64::from(is_seen);
    }
}

fn run_case(seed: u64, seen: &mut Seen) {
    let random = SeededRandom::new(seed);
    let is_controlled = random.next_u64().is_multiple_of(6);
    let is_big = random.next_u64().is_multiple_of(8);
    let ttl = Duration::from_nanos(random.next_u64() % 8_000_000_000);
    let case = Arc::new(Case {
        random,
        env: TestEnvironment::with_seed(seed),
        turn: AtomicU64::new(0),
        ttl,
        is_single: !is_controlled && !is_big,
        is_big,
        attempts: Mutex::default(),
        readers: Mutex::default(),
    });
    let plugin = BudgetPlugin::new(Limits::new()).estimate(|_| Usage::new(30, 20));
    let cache = ResponseCacheLayer::new(CacheScope::Tenant).ttl(ttl);
    let cache = match is_big {
        // Keeps 64 KiB for slow readers.
        true => cache.max_bytes(0),
        false => cache,
    };
    let model = case.stack(&plugin, &cache);

    let mut budgets = Vec::new();
    let mut contexts: Vec<Context> = Vec::new();
    let mut tasks: Vec<Option<Task>> = Vec::new();
    let texts = 1 + case.below(2);
    let tenants = 1 + case.below(2);
    for at in 0..1 + case.below(6) as usize {
        let mut context = case.env.context_builder();
        if case.one_in(5) {
            context = context.deadline(case.now() + case.pause() * 3);
        }
        let mut context = context.build();
        let key = (
            format!("t{}", case.below(tenants)),
            format!("q{}", case.below(texts)),
        );
        context
            .extensions_mut()
            .insert(Tenant(key.0.as_str().into()));
        if is_controlled && case.one_in(3) {
            let control = match case.one_in(2) {
                true => CacheControl::Refresh,
                false => CacheControl::Bypass,
            };
            // Without a shared call, the deadline and the cancellation are those of the run.
            if control == CacheControl::Refresh {
                context.extensions_mut().insert(control);
            }
        }
        let budget = Budget::new(Limits::new());
        context.provide(budget.clone());
        budgets.push(budget);
        let request = ChatRequest::user(key.1.as_str()).with_context(context.clone());
        case.readers().push(Reader {
            key,
            run: context.run_id().to_string(),
            ..Reader::default()
        });
        contexts.push(context);
        let read = Arc::clone(&case).read(at, model.clone(), request);
        let read: Pin<Box<dyn Future<Output = ()>>> = Box::pin(read);
        tasks.push(Some(task::spawn(read)));
    }

    let mut is_new = vec![true; tasks.len()];
    let mut has_dropped = false;
    let mut has_cancelled = false;
    loop {
        case.turn.fetch_add(1, Ordering::Relaxed);
        if case.one_in(40) {
            let at = case.below(tasks.len() as u64) as usize;
            let has_called = case.readers()[at].called.is_some();
            match case.one_in(2) {
                true if has_called && tasks[at].is_some() => {
                    tasks[at] = None;
                    has_dropped = true;
                }
                false if has_called => {
                    contexts[at].cancel(CancelReason::User);
                    has_cancelled = true;
                }
                _ => {}
            }
        }
        let can_run = |at: &usize| match &tasks[*at] {
            Some(task) => is_new[*at] || task.is_woken() || case.one_in(30),
            None => false,
        };
        let ready: Vec<usize> = (0..tasks.len()).filter(can_run).collect();
        let Some(at) = (!ready.is_empty()).then(|| ready[case.below(ready.len() as u64) as usize])
        else {
            if tasks.iter().all(Option::is_none) {
                break;
            }
            match case.env.clock().next_wake() {
                Some(next) => case.env.advance(next),
                // The rest waits forever.
                None => break,
            }
            continue;
        };
        is_new[at] = false;
        let task = tasks[at].as_mut().unwrap();
        if task.poll().is_ready() {
            tasks[at] = None;
        }
    }

    // A reader that still waits has a call that never ends.
    for (at, task) in tasks.iter().enumerate() {
        if task.is_some() {
            let key = case.readers()[at].key.clone();
            let attempts = case.attempts();
            let mut of_key = attempts.iter().filter(|it| it.key == key);
            assert!(
                of_key.any(|it| it.is_endless && it.scripted.live() > 0),
                "a reader was not woken"
            );
        }
    }
    let has_endless = tasks.iter().any(Option::is_some);
    drop(tasks);
    assert_eq!(case.live(None), 0, "a request is open");
    assert_eq!(case.env.clock().sleepers(), 0, "a pause is open");

    let (attempts, readers) = (case.attempts(), case.readers());
    let mut payers = vec![0; attempts.len()];
    let mut finishers = vec![0; attempts.len()];
    for reader in readers.iter() {
        // Nothing shown is repeated: each reader has the pieces of one attempt, in order.
        let attempt = reader.pieces.first().map(|(attempt, _)| *attempt);
        for (at, piece) in reader.pieces.iter().enumerate() {
            assert_eq!(*piece, (attempt.unwrap(), at));
        }
        if let Some(attempt) = attempt {
            assert_eq!(
                attempts[attempt].key, reader.key,
                "an answer to another request"
            );
        }
        // A finish ends the whole answer.
        if let (Some(usage), Some(index)) = (reader.usage, attempt) {
            let attempt = &attempts[index];
            assert_eq!(reader.pieces.len(), attempt.pieces);
            assert!(reader.error.is_none());
            if reader.is_replayed {
                assert!(attempt.is_good, "an answer that must not be stored");
                assert_eq!(usage, Usage::new(0, 0));
            } else {
                finishers[index] += 1;
                match usage == attempt.usage {
                    true => payers[index] += 1,
                    false => assert_eq!(usage, Usage::new(0, 0)),
                }
            }
        }
        if let Some((_, error)) = &reader.error
            && error.code() == Some(LAGGED)
        {
            assert!(case.is_big);
        }
    }
    // The tokens of each answer are reported once, unless the run that made the call left after others had
    // finished.
    for (attempt, (payers, finishers)) in attempts.iter().zip(payers.iter().zip(&finishers)) {
        let first = readers.iter().find(|reader| reader.run == attempt.run);
        let has_left = first.is_some_and(|first| first.usage.is_none());
        let least = usize::from(*finishers > 0 && !has_left);
        assert!((least..=1).contains(payers), "reported {payers} times");
    }
    // No request makes a call of its own after one with an answer or a possible effect that was in progress
    // while it waited, whether or not it was polled in the meantime.
    for (at, attempt) in attempts.iter().enumerate() {
        let failed = attempt.failed.as_ref();
        let failed = failed.filter(|(_, error)| error.effects() != SideEffects::None);
        let finished = attempt.finished.map(|(turn, _)| turn);
        let Some(ended) = failed.map(|(turn, _)| *turn).or(finished) else {
            continue;
        };
        if !case.is_single {
            continue;
        }
        for later in attempts[at + 1..].iter().filter(|it| it.key == attempt.key) {
            let of_run = readers.iter().find(|reader| reader.run == later.run);
            let called = of_run.and_then(|reader| reader.called).unwrap();
            assert!(
                called >= ended,
                "a call is repeated by a request that waited for it"
            );
        }
    }
    // Each attempt is counted and charged in the run that made it, also one that failed or was dropped.
    for ((reader, budget), context) in readers.iter().zip(&budgets).zip(&contexts) {
        assert_eq!(budget.reserved(), Amounts::new());
        let made = attempts.iter().filter(|it| it.run == reader.run);
        let mut usage = Usage::default();
        let (mut least, mut most) = (0, 0);
        for attempt in made {
            usage += attempt.usage;
            most += 1;
            // Failures before the first event are free if the provider has refused the call.
            least += u64::from(attempt.finished.is_some());
        }
        let counted = context.run_usage();
        let calls = counted.models().iter().map(|of| of.calls).sum::<u64>();
        assert_eq!((counted.total(), calls), (usage, most));
        let charged = budget.spent().model_calls;
        assert!(
            (least..=most).contains(&charged),
            "{least} to {most}, not {charged}"
        );
    }

    let shared = finishers.iter().any(|finishers| *finishers > 1);
    seen.add("shared answers", shared);
    seen.add("stored answers", readers.iter().any(|it| it.is_replayed));
    seen.add("dropped readers", has_dropped);
    seen.add("cancelled runs", has_cancelled);
    seen.add("endless calls", has_endless);
    let has_error = |before| {
        let mut errors = readers.iter().filter_map(|it| it.error.as_ref());
        errors.any(|(is_before, _)| *is_before == before)
    };
    seen.add("errors before the first event", has_error(true));
    seen.add("errors after the first event", has_error(false));
    let is_lagged = |it: &Reader| {
        let error = it.error.as_ref();
        error.is_some_and(|(_, error)| error.code() == Some(LAGGED))
    };
    seen.add("lagging readers", readers.iter().any(is_lagged));
    let again = attempts.iter().enumerate().any(|(at, it)| {
        let failed = it.failed.is_some();
        failed
            && attempts[at + 1..]
                .iter()
                .any(|other| other.run != it.run && other.key == it.key)
    });
    seen.add("calls after a failure of another run", again);
    let survives = attempts.iter().zip(&finishers).any(|(attempt, finishers)| {
        let first = readers.iter().find(|reader| reader.run == attempt.run);
        *finishers > 0 && first.is_some_and(|first| first.usage.is_none())
    });
    seen.add("answers after their run has left", survives);
}

struct PrintsSeed(u64);

impl Drop for PrintsSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with CACHE_SEED={} CACHE_CASES=1", self.0);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

// Cases F051 and F052.
#[test]
fn no_schedule_of_readers_repeats_calls_or_output() {
    let (first, cases) = (number("CACHE_SEED", 1), number("CACHE_CASES", 1_000));
    let mut seen = Seen::default();
    for seed in first..first + cases {
        let _prints = PrintsSeed(seed);
        run_case(seed, &mut seen);
    }
    println!("{cases} schedules: {:?}", seen.0);
    if cases >= 1_000 {
        assert!(
            seen.0.values().all(|count| *count > cases / 400),
            "{:?}",
            seen.0
        );
    }
}
