//! A policy for tower's retry layer that repeats failed model calls.
//!
//! ```
//! use concentric_core::{ChatRequest, Error, ErrorKind};
//! use concentric_layers::RetryModel;
//! use concentric_test::ScriptedModel;
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new()
//!     .error(Error::new(ErrorKind::Overloaded, "busy"))
//!     .then()
//!     .text("Hello.");
//! let retry = RetryModel::new(3).backoff(Duration::from_millis(1), Duration::from_millis(10));
//! let service = ServiceBuilder::new().layer(RetryLayer::new(retry)).service(model.clone());
//! assert_eq!(service.oneshot(ChatRequest::user("Hi")).await?.text().await?, "Hello.");
//! assert_eq!(model.calls(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Which calls are repeated
//!
//! A call is repeated only if its future fails, so before any content was emitted. An error in the body is
//! delivered. A [`CommitLayer`](crate::CommitLayer) inside moves that point.
//!
//! | error | repeated |
//! |---|---|
//! | [retryable](concentric_core::Error::is_retryable): `RateLimited`, `Overloaded`, `Server`, `Timeout`, `Connection`, `Truncated` | yes |
//! | with the provider's [advice](concentric_core::Error::advice) to retry | yes |
//! | any other | no |
//!
//! [`retry_if`](RetryModel::retry_if) replaces this table. No option repeats a call
//!
//! - whose error reports [side effects](concentric_core::Error::effects), or during which a tool with effects
//!   was started ([`effect_count`](concentric_core::Context::effect_count));
//! - of a cancelled run, or one that was halted or waits for a reply;
//! - that the provider advises against, or that fails with `Authentication`, `Permission` or `Quota`;
//! - whose error has the code `circuit_open`, `over_budget`, `over_quota` or `rate_limited_locally`: a
//!   fallback may help, another attempt does not;
//! - that an inner policy has repeated or given up ([`attempts`](concentric_core::Error::attempts)), or during
//!   which another model was called in its place, so that stacked policies do not multiply their attempts. This
//!   holds also if the answer then failed, and a layer such as [`CommitLayer`](crate::CommitLayer) returns that
//!   failure from its future;
//! - that continues a conversation which the provider stores (`previous_response_id` or `conversation` in
//!   [`provider`](concentric_core::ChatOptions::provider)), if it is unknown whether the provider received it:
//!   after `Timeout`, `Connection` or `Truncated`.
//!
//! # Pauses
//!
//! A pause is random, between zero and an upper bound that doubles with each attempt
//! ([`backoff`](RetryModel::backoff)), and not shorter than the provider's
//! [`retry_after`](concentric_core::Error::retry_after). If that exceeds
//! [`max_retry_after`](RetryModel::max_retry_after), or if the pause would not end before the run's deadline,
//! the error is returned at once.
//!
//! # Budget
//!
//! Each repetition withdraws from a [`Budget`](tower::retry::budget::Budget), and each success makes a deposit,
//! so that an outage does not multiply the load. Clones of a policy share its budget.
//!
//! | option | default |
//! |---|---|
//! | [`backoff`](RetryModel::backoff) | half a second, at most 20 seconds |
//! | [`max_retry_after`](RetryModel::max_retry_after) | 60 seconds |
//! | [`budget`](RetryModel::budget) | 10 repetitions a second, and one for every 5 successes, over 10 seconds |
//!
//! # Place in the stack
//!
//! Inside the loop, around one model: a repetition is another attempt at the same step. Inside a
//! [`FallbackLayer`](crate::fallback) and outside of layers for each attempt, such as tower's `Timeout`, a rate
//! limit or a budget layer, which count every attempt. Around an agent, it repeats runs that had no effect.
//!
//! See the [recommended order](crate::order).
//!
//! # Readiness and errors
//!
//! Those of tower's [`Retry`](tower::retry::Retry): it forwards readiness, and a repetition waits for it again.
//! The error is that of the last attempt, with the number of [`attempts`](concentric_core::Error::attempts).
//! If the policy gives up before the last one, the error's [`advice`](concentric_core::Error::advice) is `false`.
//!
//! The tokens of every attempt are in [`run_usage`](concentric_core::Context::run_usage): reported by the provider,
//! or estimated.
//!
//! Each repetition emits a custom event `concentric.retry` with the value
//! `{"attempt", "delay_ms", "kind", "code"}`, and logs a warning.
//!
//! # Cancel safety
//!
//! Dropping the future drops the attempt or the pause. A cancelled run ends its pause at once. The inner
//! service is then called once more, if the future was not dropped: an agent ends that call as aborted, and the
//! models of `concentric-providers` reject it without a request.

mod budgets;
mod policy;

pub use self::policy::RetryModel;
