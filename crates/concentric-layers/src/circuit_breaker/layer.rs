use super::{CircuitBreakerBody, CircuitState, ResponseFuture, call::Call, circuit::Circuit};
use crate::by_key::ByKey;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, ErrorKind, Event, Str};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that rejects model calls while the model fails ([`CircuitBreaker`]).
///
/// Services created by a layer and its clones share its circuits; each counts by the options of its own layer. See the
/// [module docs](super) for an example.
#[derive(Clone)]
pub struct CircuitBreakerLayer {
    options: Arc<Options>,
    circuits: Arc<ByKey<Arc<Circuit>>>,
}

#[derive(Clone)]
pub(super) struct Options {
    pub(super) name: Str,
    pub(super) opens: Opens,
    pub(super) window: Duration,
    pub(super) minimum_calls: u32,
    pub(super) slow: Option<(Duration, f64)>,
    pub(super) open_for: Duration,
    pub(super) longest_open: Duration,
    pub(super) probes: u32,
    key: Option<Arc<KeyFn>>,
    counts: Option<Arc<CountsFn>>,
}

type KeyFn = dyn Fn(&ChatRequest) -> Str + Send + Sync;
type CountsFn = dyn Fn(&Error) -> Option<bool> + Send + Sync;

/// When failures open a circuit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opens {
    AtRate(f64),
    AfterFailures(u32),
}

impl CircuitBreakerLayer {
    /// Creates a layer with one circuit for all calls. The name stands in errors, events and the log.
    pub fn new(name: impl Into<Str>) -> Self {
        Self {
            options: Arc::new(Options {
                name: name.into(),
                opens: Opens::AtRate(0.5),
                window: Duration::from_secs(60),
                minimum_calls: 20,
                slow: None,
                open_for: Duration::from_secs(30),
                longest_open: Duration::from_secs(300),
                probes: 3,
                key: None,
                counts: None,
            }),
            circuits: Arc::default(),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(Arc::make_mut(&mut self.options));
        self
    }

    /// Sets the share of failed calls, from 0 to 1, that opens a circuit; the default is 0.5.
    ///
    /// It is the share of the counted calls that ended within the [`window`](Self::window), and applies once
    /// [`minimum_calls`](Self::minimum_calls) have.
    #[must_use]
    pub fn failure_rate(self, rate: f64) -> Self {
        self.with(|options| options.opens = Opens::AtRate(rate))
    }

    /// Opens a circuit after `failures` failed calls without a success between them (at least 1), in place of
    /// the [`failure_rate`](Self::failure_rate).
    #[must_use]
    pub fn consecutive(self, failures: u32) -> Self {
        self.with(|options| options.opens = Opens::AfterFailures(failures.max(1)))
    }

    /// Sets the time over which calls are counted; the default is 60 seconds. They leave it a tenth at a time.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with(|options| options.window = window)
    }

    /// Sets the number of calls that a rate requires; the default is 20.
    #[must_use]
    pub fn minimum_calls(self, calls: u32) -> Self {
        self.with(|options| options.minimum_calls = calls)
    }

    /// Opens a circuit also if this share of calls, from 0 to 1, takes at least `first_content` to the
    /// resolution of its future. By default no call is slow.
    ///
    /// That time includes the waits of layers inside: with a [`RateLimitLayer`](crate::RateLimitLayer) inside, set
    /// more than it lets a call [wait](crate::RateLimitLayer::wait), or else its own quota opens the circuit.
    #[must_use]
    pub fn slow(self, first_content: Duration, rate: f64) -> Self {
        self.with(|options| options.slow = Some((first_content, rate)))
    }

    /// Sets the time for which a circuit is open; the default is 30 seconds. It doubles each time that a probe
    /// fails, up to [`longest_open`](Self::longest_open), and is extended by a random part of up to 20 %.
    #[must_use]
    pub fn open_for(self, time: Duration) -> Self {
        self.with(|options| options.open_for = time)
    }

    /// Sets the longest time for which a circuit is open, without the random part; the default is 5 minutes.
    #[must_use]
    pub fn longest_open(self, time: Duration) -> Self {
        self.with(|options| options.longest_open = time)
    }

    /// Sets the number of probes that close a circuit if all of them succeed (at least 1); the default is 3.
    #[must_use]
    pub fn probes(self, probes: u32) -> Self {
        self.with(|options| options.probes = probes.max(1))
    }

    /// Gives each key a circuit of its own, such as each provider region or customer key.
    ///
    /// Up to 1,024 circuits are kept, and the least recently used is replaced.
    #[must_use]
    pub fn by(self, key: impl Fn(&ChatRequest) -> Str + Send + Sync + 'static) -> Self {
        self.with(|options| options.key = Some(Arc::new(key)))
    }

    /// Decides which errors count as failures; `None` for the [default](super#successes-and-failures). An error that does
    /// not count is not a success either.
    #[must_use]
    pub fn counts(self, decide: impl Fn(&Error) -> Option<bool> + Send + Sync + 'static) -> Self {
        self.with(|options| options.counts = Some(Arc::new(decide)))
    }

    /// The state of the circuit of `key`; without [`by`](Self::by), the key is empty.
    ///
    /// An open circuit whose time has passed is half open from the next call on.
    pub fn state(&self, key: &str) -> CircuitState {
        let circuit = self.circuits.find(key);
        circuit.map_or(CircuitState::Closed, |circuit| circuit.state())
    }

    /// Opens the circuit of `key` until it is [closed](Self::close), for example during maintenance.
    pub fn open(&self, key: &str) {
        self.circuit(key.into()).open();
    }

    /// Closes the circuit of `key`, and forgets its calls.
    pub fn close(&self, key: &str) {
        if let Some(circuit) = self.circuits.find(key) {
            circuit.close();
        }
    }

    fn circuit(&self, key: Str) -> Arc<Circuit> {
        self.circuits.get(key, Arc::default)
    }
}

impl Options {
    /// Whether `error` counts as a failure of the service.
    pub(super) fn is_failure(&self, error: &Error) -> bool {
        // Not failures, whatever an option decides.
        if matches!(
            error.kind(),
            ErrorKind::Waiting | ErrorKind::Halted | ErrorKind::Cancelled
        ) {
            return false;
        }
        let decided = self.counts.as_ref().and_then(|counts| counts(error));
        decided.unwrap_or_else(|| {
            matches!(
                error.kind(),
                ErrorKind::Overloaded
                    | ErrorKind::Server
                    | ErrorKind::Timeout
                    | ErrorKind::Connection
                    | ErrorKind::Truncated
                    | ErrorKind::Protocol
            ) && error.code() != Some(super::CIRCUIT_OPEN)
        })
    }
}

impl fmt::Debug for CircuitBreakerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerLayer")
            .field("name", &self.options.name)
            .field("opens", &self.options.opens)
            .field("open_for", &self.options.open_for)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for CircuitBreakerLayer {
    type Service = CircuitBreaker<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker {
            inner,
            layer: self.clone(),
        }
    }
}

/// Middleware that rejects model calls while the model fails.
#[derive(Clone, Debug)]
pub struct CircuitBreaker<S> {
    inner: S,
    layer: CircuitBreakerLayer,
}

impl<S> CircuitBreaker<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for CircuitBreaker<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<CircuitBreakerBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let options = &self.layer.options;
        let key = options.key.as_ref().map(|key| key(&request));
        let circuit = self.layer.circuit(key.unwrap_or_default());
        match Call::admit(circuit, Arc::clone(options), request.context.clone()) {
            Ok(call) => ResponseFuture::new(self.inner.clone(), request, call),
            Err(error) => ResponseFuture::rejected(error),
        }
    }
}
