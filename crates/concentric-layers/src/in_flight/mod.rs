//! Limits the number of concurrent responses, until their bodies end.
//!
//! tower's `ConcurrencyLimit` counts a call until its future resolves. The future of a model
//! resolves at its first token, so that limit does not apply to responses that are streaming.
//! [`InFlightLimit`] counts a call until its body has ended.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel, NoTools};
//! use concentric_layers::InFlightLimitLayer;
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     let agent = ServiceBuilder::new()
//!         .layer(AgentLayer::new(NoTools))
//!         // At most 8 concurrent responses of this model, across all runs and clones.
//!         .layer(InFlightLimitLayer::new(8))
//!         .service(model);
//!     BoxModel::new(agent)
//! }
//! # let _ = agent;
//! ```
//!
//! # When a permit is released
//!
//! | the call | permit |
//! |---|---|
//! | waits | not yet acquired |
//! | fails | released when its future resolves |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | released with that item |
//! | yields an error | released with that item |
//! | ends without either | released when `None` is yielded |
//! | is dropped, as a future or as a body | released on drop |
//!
//! # Backpressure
//!
//! The service is always ready. A call waits in its future, because the run's deadline and
//! cancellation are known there: it fails with [`Timeout`](concentric_core::ErrorKind::Timeout) or
//! [`Cancelled`](concentric_core::ErrorKind::Cancelled) as soon as one of them ends the wait.
//! Permits are granted in the order of the calls. A call that has a permit then waits for the inner
//! service to become ready.
//!
//! [`queue`](InFlightLimitLayer::queue) limits the number of waiting calls. With 0, a call that
//! would wait fails with [`Overloaded`](concentric_core::ErrorKind::Overloaded). Use this in place
//! of tower's `LoadShed`, which has no effect around a service that is always ready.
//!
//! # Several processes
//!
//! With [`shared`](InFlightLimitLayer::shared), the processes that use one name in a
//! [`QuotaStore`](concentric_core::store::QuotaStore) have the permits together:
//!
//! ```
//! use concentric_core::store::QuotaStore;
//! use concentric_layers::{InFlightLimitLayer, Shared};
//! use std::{sync::Arc, time::Duration};
//!
//! fn limit(store: Arc<dyn QuotaStore>) -> InFlightLimitLayer {
//!     let shared = Shared::new(store, "openai/key-1").lease(Duration::from_secs(30));
//!     InFlightLimitLayer::new(200).shared(shared)
//! }
//! # let _ = limit;
//! ```
//!
//! A process holds as many as it uses, and renews them and returns those of responses that have ended after each
//! [batch](crate::Shared::batch), at a third of the lease at the latest. While more are wanted than there are, each
//! process has an equal share, and gives up more as its responses end. More processes than permits have them in turn, for a
//! second each. The permits, and the turns, of a process that has died are free after its
//! [lease](crate::Shared::lease). While the store does not answer, a process has the share of
//! [`OnOutage::LocalShare`](crate::OnOutage::LocalShare) (at least one), no limit, or refuses calls that have no permit
//! with [`Overloaded`](concentric_core::ErrorKind::Overloaded).
//!
//! # Place in the stack
//!
//! Inside the loop, the layer limits model calls: a run holds no permit while its tools run or
//! while it waits for an approver. Outside the loop, it limits whole runs, including their tools.
//! In that case, a sub-agent must not be behind the same limit as its parent, because it would wait
//! for its own run: such a call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! Around a retry layer, it counts all attempts as one call, including the back-off. Inside a retry
//! layer, each attempt acquires its own permit.
//!
//! See the [recommended order](crate::order).

mod body;
mod future;
mod layer;
mod limit;
mod service;
mod shared;

pub use self::{
    body::InFlightBody, future::ResponseFuture, layer::InFlightLimitLayer, service::InFlightLimit,
};
