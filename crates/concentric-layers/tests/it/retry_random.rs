//! Random errors, refusals, cuts and delays under retries and fallbacks, in virtual time.
//!
//! A case that fails prints its seed: `RETRY_SEED=17 RETRY_CASES=1` runs it again. `RETRY_CASES=100000` is the
//! long version.

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, ModelUsage, ResponseHead, SideEffects, ToolOutcome, Usage,
    context::Random as _,
};
use concentric_layers::{
    CommitLayer, FallbackLayer, RetryModel,
    budget::{Amounts, Budget, BudgetPlugin, Limits},
};
use concentric_test::{ScriptedModel, ScriptedTools, SeededRandom, TestEnvironment};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    collections::BTreeMap,
    env,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    task::Poll,
    time::{Duration, SystemTime},
};
use tokio_test::task;
use tower::{
    Layer, ServiceExt,
    retry::{RetryLayer, budget},
    service_fn,
};

/// Repetitions that all policies of a case share.
#[derive(Clone)]
struct Tokens(Arc<AtomicI64>);

impl budget::Budget for Tokens {
    fn deposit(&self) {}

    fn withdraw(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) > 0
    }
}

/// A call that reached a model.
struct Attempt {
    model: usize,
    step: u32,
    began: SystemTime,
    scripted: ScriptedModel,
    usage: Usage,
    finishes: bool,
    error: Option<Error>,
    /// Of the future, with its time.
    failed: Option<(SystemTime, Error)>,
}

impl Attempt {
    fn is_dropped(&self) -> bool {
        self.scripted.dropped() > 0
    }

    /// Whether the model returned its error, from the future or in the body.
    fn has_failed(&self) -> bool {
        !self.finishes && !self.is_dropped()
    }

    /// Whether the budget's documentation charges nothing, since the call was not sent.
    fn is_free(&self) -> bool {
        use ErrorKind::*;
        let Some((_, error)) = &self.failed else {
            return false;
        };
        let may_have_begun = matches!(
            error.kind(),
            Timeout | Connection | Truncated | Protocol | Server | Other
        );
        error.status().is_none() && error.provider().is_none() && !may_have_begun
    }
}

struct Case {
    random: SeededRandom,
    has_tools: bool,
    attempts: Mutex<Vec<Attempt>>,
    /// The number of attempts before each effect, and its step.
    effects: Mutex<Vec<(usize, u32)>>,
}

impl Case {
    fn below(&self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn attempts(&self) -> MutexGuard<'_, Vec<Attempt>> {
        self.attempts.lock().unwrap()
    }

    fn live(&self) -> usize {
        self.attempts().iter().map(|it| it.scripted.live()).sum()
    }

    fn pause(&self) -> Duration {
        Duration::from_nanos(self.below(4_000_000_000))
    }

    fn error(&self) -> Error {
        use ErrorKind::*;
        let kinds = [
            RateLimited,
            Overloaded,
            Server,
            Timeout,
            Connection,
            Truncated,
            Protocol,
            Other,
            Authentication,
            InvalidRequest,
            ContextWindow,
            ContentFilter,
            Quota,
            NotFound,
        ];
        // The first six are the retryable ones.
        let kind = match self.one_in(4) {
            true => kinds[self.below(14) as usize],
            false => kinds[self.below(6) as usize],
        };
        let mut error = Error::new(kind, "injected");
        if self.one_in(4) {
            error = error.with_retry_after(self.pause() * 20);
        }
        if self.one_in(4) {
            error = error.with_status(429);
        }
        if self.one_in(8) {
            error = error.with_advice(self.one_in(2));
        }
        if self.one_in(8) {
            error = error.with_effects(SideEffects::Possible);
        }
        if self.one_in(12) {
            error = error.with_code("circuit_open");
        }
        error
    }

    /// Begins an attempt with a random answer, whose pieces of text have the attempt's index.
    fn begin(&self, model: usize, context: &Context) -> (usize, ScriptedModel) {
        assert_eq!(self.live(), 0, "an earlier attempt is still open");
        assert!(!context.is_cancelled(), "a cancelled run starts an attempt");
        let index = self.attempts().len();
        let usage = Usage::new(self.below(100), self.below(100));
        let mut script = ScriptedModel::new()
            .head(ResponseHead::new("scripted", "scripted-1"))
            .usage(usage);
        for piece in 0..self.below(4) {
            if self.one_in(3) {
                script = script.sleep(self.pause());
            }
            let text = format!("{index}.{piece};").into();
            script = script.event(match self.below(3) {
                0 => Event::TextDelta(text),
                1 => Event::ReasoningDelta(text),
                _ => Event::RefusalDelta(text),
            });
        }
        if self.one_in(3) {
            script = script.sleep(self.pause());
        }
        let (mut error, mut finishes) = (None, false);
        script = match self.below(10) {
            0..=3 => {
                finishes = true;
                match self.has_tools && self.one_in(2) {
                    true => script.tool_call("pay", json!({})),
                    false => script,
                }
            }
            4..=7 => {
                let failure = error.insert(self.error());
                script.error(failure.clone())
            }
            8 => {
                error = Some(Error::truncated());
                script.end_early()
            }
            _ => script.never(),
        };
        self.attempts().push(Attempt {
            model,
            step: context.step(),
            began: context.now(),
            scripted: script.clone(),
            usage,
            finishes,
            error,
            failed: None,
        });
        (index, script)
    }

    /// The model `index`.
    fn model(self: &Arc<Self>, index: usize) -> BoxModel {
        let case = Arc::clone(self);
        BoxModel::new(service_fn(move |request: ChatRequest| {
            let case = Arc::clone(&case);
            async move {
                let context = request.context.clone();
                let (index, scripted) = case.begin(index, &context);
                match scripted.oneshot(request).await {
                    Ok(response) => Ok(response.map_body(EventStream::new)),
                    Err(error) => {
                        case.attempts()[index].failed = Some((context.now(), error.clone()));
                        Err(error)
                    }
                }
            }
        }))
    }

    /// A random policy, and its number of attempts.
    fn policy(&self, tokens: &Tokens) -> (RetryLayer<RetryModel>, usize) {
        let attempts = self.below(5);
        let policy = RetryModel::new(attempts as u32)
            .backoff(self.pause() / 2, self.pause() * 2)
            .budget(tokens.clone());
        (RetryLayer::new(policy), attempts.max(1) as usize)
    }

    fn tools(self: &Arc<Self>) -> ScriptedTools {
        let case = Arc::clone(self);
        ScriptedTools::new().tool("pay", move |call| {
            let begun = case.attempts().len();
            case.effects
                .lock()
                .unwrap()
                .push((begun, call.context.step()));
            async { ToolOutcome::done("paid") }
        })
    }
}

/// The consumer's behaviour.
struct Consumer {
    env: TestEnvironment,
    context: Context,
    turns: u64,
    cancel_at: Option<u64>,
    drop_at: Option<u64>,
}

impl Consumer {
    /// Drives `future` in virtual time; `None` if the consumer leaves, or if the future would wait forever.
    fn drive<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = task::spawn(future);
        loop {
            self.turns += 1;
            if self.cancel_at == Some(self.turns) {
                self.context.cancel(CancelReason::User);
            }
            if self.drop_at == Some(self.turns) {
                return None;
            }
            if let Poll::Ready(output) = future.poll() {
                return Some(output);
            }
            if !future.is_woken() {
                self.env.advance(self.env.clock().next_wake()?);
            }
        }
    }
}

/// The number of cases with each event, so that the test shows that all occur.
#[derive(Debug, Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn add(&mut self, name: &'static str, is_seen: bool) {
        *self.0.entry(name).or_default() += u64::from(is_seen);
    }
}

fn run_case(seed: u64, seen: &mut Seen) {
    let env = TestEnvironment::with_seed(seed);
    let random = SeededRandom::new(seed);
    let has_tools = random.next_u64().is_multiple_of(2);
    let case = Arc::new(Case {
        random,
        has_tools,
        attempts: Mutex::default(),
        effects: Mutex::default(),
    });
    let tokens = Tokens(Arc::new(AtomicI64::new(case.below(9) as i64)));
    let plugin = BudgetPlugin::new(Limits::new()).estimate(|_| Usage::new(30, 20));
    let mut most = 0;
    let mut candidate = |index: usize| {
        let counted = BoxModel::new(plugin.model().layer(case.model(index)));
        let held = match case.below(3) {
            0 => counted,
            1 => BoxModel::new(CommitLayer::whole().layer(counted)),
            _ => BoxModel::new(CommitLayer::first_sentence().layer(counted)),
        };
        let (retry, attempts) = case.policy(&tokens);
        most += attempts;
        BoxModel::new(retry.layer(held))
    };
    let first = candidate(0);
    let mut fallback = FallbackLayer::new("0").sticky(case.one_in(2));
    for index in 1..=case.below(3) as usize {
        fallback = fallback.or(index.to_string(), candidate(index));
    }
    if case.one_in(2) {
        fallback = fallback.time_to_first(case.pause());
    }
    if case.one_in(4) {
        fallback = fallback.on(|_| Some(true));
    }
    let mut stack = BoxModel::new(fallback.layer(first));
    if has_tools {
        stack = BoxModel::new(AgentLayer::new(case.tools()).step_limit(4).layer(stack));
    }
    if case.one_in(2) {
        let (retry, attempts) = case.policy(&tokens);
        // Its attempts add to those inside.
        most += attempts - 1;
        if case.one_in(2) {
            // Hides from the policy that the error follows effects.
            let hiding = Arc::clone(&case);
            let hide = move |error| match hiding.effects.lock().unwrap().is_empty() {
                true => error,
                false => Error::new(ErrorKind::Server, "replaced"),
            };
            stack = BoxModel::new(CommitLayer::whole().layer(stack).map_err(hide));
        }
        stack = BoxModel::new(retry.layer(stack));
    }

    let mut context = env.context_builder();
    let deadline = case
        .one_in(3)
        .then(|| env.context().now() + case.pause() * 3);
    if let Some(deadline) = deadline {
        context = context.deadline(deadline);
    }
    let mut request = ChatRequest::user("hi").with_context(context.build());
    let is_stored = case.one_in(4);
    if is_stored {
        let options = &mut request.options_mut().provider;
        options.insert("previous_response_id".to_owned(), json!("r1"));
    }
    let budget = Budget::new(Limits::new());
    request.context.provide(budget.clone());
    let context = request.context.clone();
    let mut consumer = Consumer {
        env: env.clone(),
        context: context.clone(),
        turns: 0,
        cancel_at: case.one_in(4).then(|| case.below(30)),
        drop_at: case.one_in(4).then(|| case.below(30)),
    };

    let called = consumer.drive(stack.oneshot(request));
    let mut has_error = matches!(called, Some(Err(_)));
    let (mut shown, mut finish) = (Vec::new(), None);
    if let Some(Ok(response)) = called {
        let ChatResponse { mut body, .. } = response;
        while let Some(Some(item)) = consumer.drive(body.next()) {
            has_error |= item.is_err();
            if let Ok(Event::Finish(of_run)) = &item {
                finish = Some(of_run.clone());
            }
            let Ok(
                Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text),
            ) = item
            else {
                continue;
            };
            let (attempt, piece) = text.trim_end_matches(';').split_once('.').unwrap();
            shown.push((
                attempt.parse::<usize>().unwrap(),
                piece.parse::<usize>().unwrap(),
            ));
        }
    }

    // Nothing is open.
    assert_eq!(case.live(), 0, "a request is open");
    assert_eq!(env.clock().sleepers(), 0, "a pause is open");
    assert_eq!(budget.reserved(), Amounts::new());

    let attempts = case.attempts();
    // Nothing shown is repeated: each step shows the pieces of its last attempt, in order.
    for (at, (attempt, piece)) in shown.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| shown[before]);
        match before {
            Some((same, last)) if same == *attempt => assert_eq!(*piece, last + 1),
            _ => assert_eq!(*piece, 0),
        }
        let step = attempts[*attempt].step;
        let later = &attempts[attempt + 1..];
        assert!(
            later.iter().all(|it| it.step > step),
            "a step is repeated after output"
        );
    }

    // Nothing with a possible effect is repeated.
    for (begun, step) in case.effects.lock().unwrap().iter() {
        assert!(
            attempts[*begun..].iter().all(|it| it.step > *step),
            "an effect is repeated"
        );
    }
    for (at, attempt) in attempts.iter().enumerate() {
        let later = &attempts[at + 1..];
        let is_same = |it: &&Attempt| (it.model, it.step) == (attempt.model, attempt.step);
        let again = later.iter().find(is_same);
        let error = attempt.error.as_ref().filter(|_| attempt.has_failed());
        if error.is_some_and(|error| error.effects() != SideEffects::None) {
            assert!(later.is_empty(), "a possible effect is repeated");
        }
        let is_unclear = |error: &Error| {
            use ErrorKind::*;
            matches!(error.kind(), Timeout | Connection | Truncated)
        };
        if is_stored
            && attempt.model == 0
            && (attempt.is_dropped() || error.is_some_and(is_unclear))
        {
            assert!(again.is_none(), "a stored conversation is continued twice");
        }
        if let (Some(next), Some((failed, error))) = (again, &attempt.failed) {
            let pause = error.retry_after().unwrap_or_default();
            assert!(next.began >= *failed + pause, "a provider's pause was cut");
        }
        let is_repetition = attempts[..at].iter().any(|it| it.step == attempt.step);
        if let Some(deadline) = deadline.filter(|_| is_repetition) {
            assert!(
                attempt.began < deadline,
                "an attempt begins after the deadline"
            );
        }
        let in_step = attempts.iter().filter(|it| it.step == attempt.step).count();
        assert!(in_step <= most, "{in_step} attempts, more than {most}");
    }

    // Every attempt is counted, also one that failed or was dropped.
    let mut usage = Usage::default();
    attempts.iter().for_each(|it| usage += it.usage);
    let counted = context.run_usage();
    assert_eq!(counted.total(), usage);
    let sum = |count: fn(&ModelUsage) -> u64| counted.models().iter().map(count).sum::<u64>();
    assert_eq!(sum(|of| of.calls), attempts.len() as u64);
    let partial = attempts.iter().filter(|it| !it.finishes || it.is_dropped());
    assert_eq!(sum(|of| of.estimated), partial.count() as u64);
    if let Some(finish) = finish.filter(|_| has_tools) {
        assert_eq!(finish.run_usage().total(), usage);
    }
    let charged = attempts.iter().filter(|it| !it.is_free()).count();
    assert_eq!(budget.spent().model_calls, charged as u64);

    let again = |other: bool| {
        attempts
            .windows(2)
            .any(|pair| pair[0].step == pair[1].step && (pair[0].model != pair[1].model) == other)
    };
    seen.add(
        "answers after a repetition",
        again(false) && !shown.is_empty(),
    );
    seen.add("answers of another model", again(true) && !shown.is_empty());
    seen.add("errors after a repetition", again(false) && has_error);
    let has_effects = !case.effects.lock().unwrap().is_empty();
    seen.add("errors after effects", has_effects && has_error);
    seen.add("cuts", attempts.iter().any(Attempt::is_dropped));
    seen.add("cancelled runs", context.is_cancelled());
    seen.add("free attempts", charged < attempts.len());
}

struct PrintsSeed(u64);

impl Drop for PrintsSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with RETRY_SEED={} RETRY_CASES=1", self.0);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

// Cases C028, C031, F018 and F020.
#[test]
fn no_schedule_repeats_output_or_effects() {
    let (first, cases) = (number("RETRY_SEED", 1), number("RETRY_CASES", 2_000));
    let mut seen = Seen::default();
    for seed in first..first + cases {
        let _prints = PrintsSeed(seed);
        run_case(seed, &mut seen);
    }
    println!("{cases} schedules: {:?}", seen.0);
    if cases >= 2_000 {
        assert!(
            seen.0.values().all(|count| *count > cases / 100),
            "{:?}",
            seen.0
        );
    }
}
