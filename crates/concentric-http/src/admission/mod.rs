//! A layer that limits how many runs an HTTP server executes at once.
//!
//! [`AgUiLayer`](crate::ag_ui::AgUiLayer) answers with the head of its stream at once, so layers that
//! count a request until its response, such as tower's `ConcurrencyLimit` and `LoadShed`, limit
//! nothing there. [`Admission`] counts a request until the body of its response has ended, for each
//! tenant and in all. Requests beyond that wait in a bounded queue, or are refused before a stream
//! begins.
//!
//! ```no_run
//! use axum::Router;
//! use concentric_core::BoxModel;
//! use concentric_http::{admission::AdmissionLayer, ag_ui::AgUiLayer};
//! use std::time::Duration;
//! use tower::{Layer, ServiceBuilder};
//!
//! fn app(agent: BoxModel) -> Router {
//!     let agent = ServiceBuilder::new()
//!         // 200 runs at once, of which one tenant has at most 10; 100 requests wait for at most 5
//!         // seconds, of which one tenant has at most 5.
//!         .layer(
//!             AdmissionLayer::new(200)
//!                 .per_tenant(10)
//!                 .queue(100)
//!                 .queue_per_tenant(5)
//!                 .queue_timeout(Duration::from_secs(5)),
//!         )
//!         .service(AgUiLayer::new().layer(agent));
//!     Router::new().route_service("/agent", agent)
//! }
//! # let _ = app;
//! ```
//!
//! # When what happens
//!
//! | a request | |
//! |---|---|
//! | comes while its tenant and the server are below their limits | is passed on, and counts |
//! | comes while one of them is at its limit | waits, if both queues have room |
//! | finds no room in the queue, or waits for the timeout | is answered with `429` if its tenant is at the limit, else with `503`; both have `retry-after` |
//! | is the first of those that wait whose tenant is below its limit, when a run ends | is passed on, and counts |
//! | is dropped while it waits | leaves the queue |
//! | fails, or is dropped while its response is awaited | no longer counts |
//! | has a response, whose body ends, fails or is dropped | no longer counts |
//!
//! The answer has a JSON body: `{"error": {"code", "message"}}`, where `code` is `too_many_runs_of_tenant`
//! or `too_many_runs`.
//!
//! # Place in the stack
//!
//! Directly around [`AgUi`](crate::ag_ui::AgUi), on that route alone, so that health checks and static
//! files do not count. Authentication goes outside, since the tenant is the
//! [`Tenant`](concentric_core::store::Tenant) that it puts into the request's extensions; without
//! one, all requests are those of one tenant. A timeout around it bounds the wait in the queue and the
//! upload; without one, a client that uploads slowly occupies a place for as long as it stays
//! connected. All services of one layer and its clones share their limits.
//!
//! Limits on what runs do, such as model calls in flight, belong into the agent's stack.
//!
//! # Backpressure
//!
//! The service is always ready: a request waits in its future, so that one that waits for its tenant
//! does not hold up those of other tenants. The queue is first come, first served among those that may
//! be passed on. Memory is bounded by both limits: a tenant is forgotten when it has neither a run nor
//! a request that waits.

mod body;
mod future;
mod gate;
mod layer;
mod service;

pub use self::{
    body::AdmissionBody, future::ResponseFuture, layer::AdmissionLayer, service::Admission,
};
