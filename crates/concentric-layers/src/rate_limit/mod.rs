//! A layer that keeps model calls within a quota of requests and tokens.
//!
//! ```
//! use concentric_core::{BoxModel, store::Tenant};
//! use concentric_layers::{RateLimitLayer, rate_limit::Quota};
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//!
//! fn limited(model: BoxModel) -> BoxModel {
//!     let minute = Quota::per(Duration::from_secs(60));
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(
//!                 RateLimitLayer::new(minute.requests(500).input_tokens(200_000))
//!                     // A quota for each tenant.
//!                     .by(|request| Tenant::of(&request.context).0)
//!                     .wait(Duration::from_secs(10)),
//!             )
//!             .service(model),
//!     )
//! }
//! # let _ = limited;
//! ```
//!
//! # Reservation
//!
//! Each key has a token bucket per limited amount: it holds at most the amount of one period, and is refilled
//! evenly. A call waits until its request and its estimated tokens are there, and takes them. It also waits until
//! the calls that began within the last period, and itself, have no more than the quota: of requests exactly, of
//! tokens up to a part of one estimate. A provider that counts per period therefore rejects none of them, whatever
//! the moments at which it begins to count.
//!
//! | moment | effect |
//! |---|---|
//! | the answer finishes and reports its usage | the difference to the estimate is returned, or taken from the next refill |
//! | the answer fails or is dropped, or reports no usage; the connection breaks before the answer | the estimate stays taken, and more if more was received: a token per 4 bytes of text and of the arguments of tool calls |
//! | the provider rejects the call with a status | the tokens are returned |
//! | no provider received the call: there was no connection (an error with the code `not_connected`), or a layer or an adapter inside rejected it | the tokens and the request are returned |
//!
//! The estimate of the input is that of an [`Estimator`](crate::tokens::Estimator). That of the output is the
//! number of tokens that at most one in 20 of the key's last 64 answers exceeded, up to
//! [`max_output_tokens`](concentric_core::ChatOptions::max_output_tokens) and the quota; before the first answer,
//! `max_output_tokens`, or nothing without it. [`estimate`](RateLimitLayer::estimate) replaces both. Quotas apply to
//! one process, unless they are [shared](#several-processes). The layer keeps no state of a run, so the calls of a
//! resumed run take from the quotas of the process that resumes it.
//!
//! Times are those of the clocks of the runs, so that a quota and the waits for it have one clock, also in a test;
//! runs that share a layer need the same one.
//!
//! # The provider's limits
//!
//! The quota of a key also follows the reports of the provider ([`follow_provider`](RateLimitLayer::follow_provider)):
//!
//! | moment | effect |
//! |---|---|
//! | an answer or an error has [`RateLimits`](concentric_core::RateLimits) | a call whose estimate exceeds the rest waits until the time of the reset, for an hour at most; the calls that began since are deducted from the rest until they are answered |
//! | the provider rejects a call with `RateLimited` | calls of the key wait for its [`retry_after`](concentric_core::Error::retry_after), for an hour at most, and the quota is halved, once for all calls that were under way together |
//! | a period ends after that | the quota recovers by a tenth of the whole |
//!
//! Calls may need more than a halved quota; they take all of it, and the rest from the next refill.
//!
//! # Several processes
//!
//! With [`shared`](RateLimitLayer::shared), the processes that use one name in a
//! [`QuotaStore`](concentric_core::store::QuotaStore), such as that of Redis or PostgreSQL, have one quota for each key:
//!
//! | point | behaviour |
//! |---|---|
//! | amount | the calls of any period, of all processes, have no more than the quota, by the clock of the store. A process exceeds it by what it uses in the time of a [batch](crate::Shared::batch), and by differences between estimates and use |
//! | cost | one request to the store for all calls that wait in a process, and none for calls that a batch covers; differences are returned at the latest after a batch |
//! | order | by priority in a process; the tenants ([`Tenant`](concentric_core::store::Tenant)) of all processes are served in turns, each by the share of the quota that its calls take. While several processes or tenants wait, an eighth of the quota at most begins at once, and the rest at an even rate |
//! | the provider's limits | a report, and a rejected call, of one process apply to all: at once in its own, and in the others with their next request to the store. The share of the quota recovers as above |
//! | a process dies | what it has taken counts until its period is over; its place in the turns is lost after half a second |
//! | the store does not answer in [time](crate::Shared::patience), or fails | [`on_outage`](crate::Shared::on_outage): a share of the quota for each process, no calls, or all; with a warning at most once a minute, and [counted](crate::Shared::outages) |
//!
//! Calls of such a layer run on a tokio runtime, with a task for each key that is in use.
//!
//! # Place in the stack
//!
//! Inside the loop and inside retries, so that each attempt counts. A waiting call holds nothing, so a parent
//! and a nested agent can share a layer.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! The layer is always ready, because the key of a call is unknown before it. Calls of a key are served in turns of
//! their tenants, each in its order, or by [`priority`](RateLimitLayer::priority). At most
//! [`queue`](RateLimitLayer::queue) calls of a key wait, for at most [`wait`](RateLimitLayer::wait); of a shared quota, at
//! least 64 may, since its store is asked first.
//!
//! # Errors
//!
//! [`RateLimited`](concentric_core::ErrorKind::RateLimited) with the code [`RATE_LIMITED`] and the time after which
//! the call may succeed: when the queue is full, when the wait is too long, and when it would exceed the deadline
//! of the run, at once for the first call of the queue; while a shared quota cannot be read, by its policy.
//! [`Cancelled`](concentric_core::ErrorKind::Cancelled) if the run is cancelled meanwhile. [`TooLarge`](concentric_core::ErrorKind::TooLarge) with the code [`OVER_QUOTA`]
//! for a call whose estimate exceeds the quota of a whole period.
//!
//! # Cancel safety
//!
//! Dropping the future of a waiting call lets the next one pass. Dropping the body of an answer settles its
//! reservation.

mod body;
mod bucket;
mod future;
mod layer;
mod recent;
mod shared;

pub use self::{
    body::RateLimitBody,
    future::ResponseFuture,
    layer::{RateLimit, RateLimitLayer},
};

pub use concentric_core::store::Quota;

/// The [code](concentric_core::Error::code) of an error for a call that may not wait longer.
pub const RATE_LIMITED: &str = "rate_limited_locally";

/// The [code](concentric_core::Error::code) of an error for a call that exceeds the quota of a whole period.
pub const OVER_QUOTA: &str = "over_quota";
