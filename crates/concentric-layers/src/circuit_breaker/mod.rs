//! A layer that rejects model calls at once while the model fails.
//!
//! ```
//! use concentric_core::{ChatRequest, Error, ErrorKind};
//! use concentric_layers::circuit_breaker::{CIRCUIT_OPEN, CircuitBreakerLayer, CircuitState};
//! use concentric_test::ScriptedModel;
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let busy = Error::new(ErrorKind::Overloaded, "busy");
//! let model = ScriptedModel::new().error(busy).repeat();
//! let breaker = CircuitBreakerLayer::new("openai").consecutive(2);
//! let service = breaker.layer(model.clone());
//! for _ in 0..5 {
//!     service.clone().oneshot(ChatRequest::user("Hi")).await.unwrap_err();
//! }
//! assert_eq!((model.calls(), breaker.state("")), (2, CircuitState::Open));
//! let error = service.oneshot(ChatRequest::user("Hi")).await.unwrap_err();
//! assert_eq!(error.code(), Some(CIRCUIT_OPEN));
//! # Ok(())
//! # }
//! ```
//!
//! # States
//!
//! | state | calls | next state |
//! |---|---|---|
//! | closed | pass | open, if a [rate of failures](CircuitBreakerLayer::failure_rate), a number of [consecutive failures](CircuitBreakerLayer::consecutive) or a rate of [slow calls](CircuitBreakerLayer::slow) is reached |
//! | open | fail | half open, with the first call after [`open_for`](CircuitBreakerLayer::open_for) |
//! | half open | as many as there are [`probes`](CircuitBreakerLayer::probes) pass, the others fail | closed, if all probes succeed; open for twice the time, if one fails or is slow |
//!
//! The outcome of a call counts only for the state in which it began. Probes whose answers nobody reads do not
//! keep a circuit half open: if none has begun for [`open_for`](CircuitBreakerLayer::open_for), others take the
//! place of those that have not ended.
//!
//! # Successes and failures
//!
//! The end of a call counts, so an answer that breaks off is a failure.
//!
//! | end | |
//! |---|---|
//! | the answer finishes, for whatever reason | a success |
//! | `Overloaded`, `Server`, `Timeout`, `Connection`, `Truncated`, `Protocol`, from the future or in the body | a failure |
//! | the body ends without a finish | a failure |
//! | any other error, such as `RateLimited`, `Authentication`, `InvalidRequest`, `ContextWindow` | neither |
//! | the future or the body is dropped | neither |
//! | an error after the run was cancelled, or after its deadline | neither |
//!
//! The call of a probe without a success or a failure gives its place back.
//! [`counts`](CircuitBreakerLayer::counts) replaces this table for errors; `Waiting`, `Halted` and `Cancelled`
//! are never failures. Time in which a consumer does not read an answer does not make a call slow.
//!
//! | option | default |
//! |---|---|
//! | [`failure_rate`](CircuitBreakerLayer::failure_rate), [`window`](CircuitBreakerLayer::window), [`minimum_calls`](CircuitBreakerLayer::minimum_calls) | half of at least 20 calls in 60 seconds |
//! | [`open_for`](CircuitBreakerLayer::open_for), [`longest_open`](CircuitBreakerLayer::longest_open) | 30 seconds, at most 5 minutes |
//! | [`probes`](CircuitBreakerLayer::probes) | 3 |
//!
//! Times are those of the clocks of the runs. Circuits apply to one process. The layer keeps no state of a run, so the
//! calls of a resumed run pass by the circuits of the process that resumes it.
//!
//! # Place in the stack
//!
//! Inside the loop, inside retries and outside of the layers of one attempt, such as tower's `Timeout`: every
//! attempt counts, also one that timed out. A [`RetryModel`](crate::retry) does not repeat a rejected call, and a
//! [`FallbackLayer`](crate::fallback) around it calls another model; its `time_to_first` must exceed the timeout
//! inside of this layer, since a call that it drops counts as neither. A layer value in several stacks has one
//! circuit for all of them. A model that repeats the same tool call is the subject of
//! [`LoopDetector`](crate::stop).
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! Always ready, because an open circuit must not wait for the inner service. The future of an admitted call
//! waits for its readiness, and a failure to become ready counts.
//!
//! # Errors
//!
//! [`Overloaded`](concentric_core::ErrorKind::Overloaded) with the code [`CIRCUIT_OPEN`], and with the time until
//! a call may pass, at the latest, unless the circuit was [opened](CircuitBreakerLayer::open) by hand. Other
//! errors pass unchanged.
//!
//! Each change of a state emits a custom event `concentric.circuit` with the value `{"name", "state"}` to the run
//! of the call that caused it, and logs a warning. A state is `closed`, `open` or `half_open`. There is no metric:
//! [`state`](CircuitBreakerLayer::state) is the value of a gauge, and the log lines can be counted.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner call, and then gives its place back if it is a probe.

mod body;
mod call;
mod circuit;
mod future;
mod layer;

pub use self::{
    body::CircuitBreakerBody,
    circuit::CircuitState,
    future::ResponseFuture,
    layer::{CircuitBreaker, CircuitBreakerLayer},
};

/// The [code](concentric_core::Error::code) of an error for a call that an open circuit rejects.
pub const CIRCUIT_OPEN: &str = "circuit_open";
