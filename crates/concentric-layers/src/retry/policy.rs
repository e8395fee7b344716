use super::budgets::Budgets;
use crate::{
    local::LOCAL,
    provider_state::is_stored_by_provider,
    repeats::{count_repeat, repeats},
};
use concentric_core::{
    BoxError, ChatRequest, Context, CustomEvent, Error, ErrorKind, SideEffects, Str, context::Sleep,
};
use serde_json::json;
use std::{fmt, sync::Arc, time::Duration};
use tower::retry::{
    Policy,
    budget::{Budget, TpsBudget},
};

/// Repeats failed model calls, as a policy for tower's [`RetryLayer`](tower::retry::RetryLayer).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct RetryModel {
    options: Arc<Options>,
    // Of the call of this clone: the attempts begun, the failed attempts of all policies, and the effects and
    // the repeated calls of the run before the first attempt. The latter include this policy's own.
    made: u32,
    failed: u32,
    effects: u64,
    repeats: u32,
}

#[derive(Clone)]
struct Options {
    attempts: u32,
    first: Duration,
    longest: Duration,
    max_retry_after: Duration,
    budgets: Budgets,
    retry_if: Option<Arc<Decide>>,
}

type Decide = dyn Fn(&Error) -> Option<bool> + Send + Sync;

/// The decision after a failed attempt.
enum Next {
    Retry(Sleep),
    /// The error is returned, with the number of failed attempts and whether the policy gave up early.
    Return {
        attempts: u32,
        gave_up: bool,
    },
}

/// The resolution of tokio's timers. A pause that ends within it before the deadline may end after it.
const TICK: Duration = Duration::from_millis(1);

impl RetryModel {
    /// Limits the attempts at a call to `attempts`, including the first; 0 means 1.
    pub fn new(attempts: u32) -> Self {
        Self {
            options: Arc::new(Options {
                attempts,
                first: Duration::from_millis(500),
                longest: Duration::from_secs(20),
                max_retry_after: Duration::from_secs(60),
                budgets: Budgets::One(Arc::new(TpsBudget::default())),
                retry_if: None,
            }),
            made: 1,
            failed: 0,
            effects: 0,
            repeats: 0,
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(Arc::make_mut(&mut self.options));
        self
    }

    /// Sets the upper bound of the first pause, which doubles with each further one, and its maximum; the
    /// defaults are half a second and 20 seconds. With [`Duration::ZERO`], only the provider causes pauses.
    #[must_use]
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        self.with(|options| (options.first, options.longest) = (first, longest))
    }

    /// Sets the longest pause that a [provider's request](Error::retry_after) may cause; the default is 60
    /// seconds. An error that requests more is returned at once.
    #[must_use]
    pub fn max_retry_after(self, longest: Duration) -> Self {
        self.with(|options| options.max_retry_after = longest)
    }

    /// Sets the budget of all calls; the default is a [`TpsBudget`].
    #[must_use]
    pub fn budget(self, budget: impl Budget + Send + Sync + 'static) -> Self {
        self.with(|options| options.budgets = Budgets::One(Arc::new(budget)))
    }

    /// Sets a budget for each key, such as that of a tenant. `budget` creates one for a new key.
    ///
    /// Up to 1,024 budgets are kept, and the least recently used is replaced.
    #[must_use]
    pub fn budget_by<B>(
        self,
        key: impl Fn(&ChatRequest) -> Str + Send + Sync + 'static,
        budget: impl Fn() -> B + Send + Sync + 'static,
    ) -> Self
    where
        B: Budget + Send + Sync + 'static,
    {
        self.with(|options| options.budgets = Budgets::by_key(key, budget))
    }

    /// Decides which errors are repeated; `None` for the default. Calls that may
    /// [never be repeated](super#which-calls-are-repeated) are not affected.
    #[must_use]
    pub fn retry_if(self, decide: impl Fn(&Error) -> Option<bool> + Send + Sync + 'static) -> Self {
        self.with(|options| options.retry_if = Some(Arc::new(decide)))
    }

    fn begin(&mut self, request: &ChatRequest) -> ChatRequest {
        // The policy of the service itself never counts an attempt, so each call begins here.
        if self.made == 1 {
            self.effects = request.context.effect_count();
            self.repeats = repeats(&request.context);
        }
        request.clone()
    }

    fn succeeded(&self, request: &ChatRequest) {
        self.options.budgets.of(request).deposit();
    }

    fn after(&mut self, request: &ChatRequest, error: &Error) -> Next {
        // A layer in between may have replaced the error of the policies inside.
        let inside = repeats(&request.context).saturating_sub(self.repeats);
        let attempts = error.attempts().max(inside.saturating_add(1));
        self.failed = self.failed.saturating_add(attempts);
        let stop = |gave_up| Next::Return {
            attempts: self.failed,
            gave_up,
        };
        let is_over = attempts > 1 || self.made >= self.options.attempts;
        if is_over || !self.is_repeatable(request, error) {
            return stop(false);
        }
        let Some(pause) = self.pause(&request.context, error) else {
            return stop(true);
        };
        if !self.options.budgets.of(request).withdraw() {
            return stop(true);
        }
        report(&request.context, self.made, pause, error);
        count_repeat(&request.context);
        self.repeats += 1;
        self.made += 1;
        if pause.is_zero() {
            // A timer would wait for its next tick.
            return Next::Retry(Box::pin(std::future::ready(())));
        }
        let context = request.context.clone();
        Next::Retry(Box::pin(async move {
            // Ends early if the run is cancelled.
            let _ = context.sleep(pause).await;
        }))
    }

    fn is_repeatable(&self, request: &ChatRequest, error: &Error) -> bool {
        let context = &request.context;
        let is_known_to_recur = matches!(
            error.kind(),
            ErrorKind::Authentication
                | ErrorKind::Permission
                | ErrorKind::Quota
                | ErrorKind::Waiting
                | ErrorKind::Halted
                | ErrorKind::Cancelled
        ) || error.advice() == Some(false)
            || error.code().is_some_and(|code| LOCAL.contains(&code));
        let may_have_effects = error.effects() != SideEffects::None
            || context.effect_count() != self.effects
            || is_receipt_unknown(error) && is_stored_by_provider(request);
        if is_known_to_recur || may_have_effects || context.is_cancelled() {
            return false;
        }
        let decide = self.options.retry_if.as_deref();
        decide
            .and_then(|decide| decide(error))
            .unwrap_or_else(|| error.is_retryable() || error.advice() == Some(true))
    }

    /// Returns the pause before the next attempt; `None` if it would be too long.
    fn pause(&self, context: &Context, error: &Error) -> Option<Duration> {
        let options = &self.options;
        let least = error.retry_after().unwrap_or_default();
        if least > options.max_retry_after {
            return None;
        }
        let doubled = 1_u32.checked_shl(self.made - 1).unwrap_or(u32::MAX);
        let most = options.first.saturating_mul(doubled).min(options.longest);
        // Jitter: calls that failed together must not be repeated together.
        let share = context.environment().random().next_u64() as f64 / u64::MAX as f64;
        let pause = Duration::try_from_secs_f64(most.as_secs_f64() * share).unwrap_or(most);
        let pause = pause.max(least);
        let left = context.remaining();
        left.is_none_or(|left| pause.saturating_add(TICK) < left)
            .then_some(pause)
    }
}

/// Whether the provider may have received the request although the call failed.
fn is_receipt_unknown(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Timeout | ErrorKind::Connection | ErrorKind::Truncated
    )
}

fn report(context: &Context, attempt: u32, pause: Duration, error: &Error) {
    let delay_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let (kind, code) = (error.kind().as_str(), error.code());
    tracing::warn!(
        target: "concentric::retry",
        run = %context.run_id(),
        step = context.step(),
        attempt,
        delay_ms,
        kind,
        code,
        "a model call failed and is repeated"
    );
    let value = json!({"attempt": attempt, "delay_ms": delay_ms, "kind": kind, "code": code});
    // A consumer that is far behind loses the event.
    let _ = context.emit(CustomEvent::new("concentric.retry", value));
}

/// Adds the attempts to an error that is returned.
fn mark(error: Error, attempts: u32, gave_up: bool) -> Error {
    let error = error.with_attempts(attempts);
    match gave_up {
        true => error.with_advice(false),
        false => error,
    }
}

impl<Res> Policy<ChatRequest, Res, Error> for RetryModel {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut ChatRequest,
        result: &mut Result<Res, Error>,
    ) -> Option<Sleep> {
        let Err(error) = result else {
            self.succeeded(request);
            return None;
        };
        match self.after(request, error) {
            Next::Retry(pause) => return Some(pause),
            Next::Return { attempts, gave_up } if attempts != error.attempts() || gave_up => {
                *error = mark(error.clone(), attempts, gave_up);
            }
            Next::Return { .. } => {}
        }
        None
    }

    fn clone_request(&mut self, request: &ChatRequest) -> Option<ChatRequest> {
        Some(self.begin(request))
    }
}

impl<Res> Policy<ChatRequest, Res, BoxError> for RetryModel {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut ChatRequest,
        result: &mut Result<Res, BoxError>,
    ) -> Option<Sleep> {
        let Err(boxed) = result else {
            self.succeeded(request);
            return None;
        };
        let error = Error::of(&**boxed);
        match self.after(request, &error) {
            Next::Retry(pause) => return Some(pause),
            Next::Return { attempts, gave_up } if attempts != error.attempts() || gave_up => {
                let whole = Error::from(std::mem::replace(boxed, error.into()));
                *boxed = mark(whole, attempts, gave_up).into();
            }
            Next::Return { .. } => {}
        }
        None
    }

    fn clone_request(&mut self, request: &ChatRequest) -> Option<ChatRequest> {
        Some(self.begin(request))
    }
}

impl fmt::Debug for RetryModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryModel")
            .field("attempts", &self.options.attempts)
            .field("first", &self.options.first)
            .field("longest", &self.options.longest)
            .field("max_retry_after", &self.options.max_retry_after)
            .finish_non_exhaustive()
    }
}
