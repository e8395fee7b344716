//! A layer that limits the number of concurrent runs of an HTTP server.
//!
//! [`AgUiLayer`](crate::ag_ui::AgUiLayer) returns the head of its response at once, so layers that
//! count a request until its response, such as tower's `ConcurrencyLimit` and `LoadShed`, have no
//! effect there. [`Admission`] counts a request until its response body has ended, per tenant and
//! in total. Requests beyond the limits wait in a bounded queue, or are rejected before a stream
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
//!         // At most 200 concurrent runs, 10 of one tenant; 100 requests, 5 of one tenant, wait for
//!         // up to 5 seconds.
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
//! # Behavior
//!
//! | event | behavior |
//! |---|---|
//! | a request arrives below both limits | runs, and counts |
//! | a request arrives at one of the limits | waits, if the queue has room in total and for the tenant |
//! | the queue is full, or the queue timeout ends | `429` if the tenant is at its limit, else `503`, both with `retry-after`; a request without a tenant always gets `503` |
//! | a run ends | the oldest waiting request whose tenant is below its limit runs, and counts |
//! | a waiting request is dropped | it leaves the queue |
//! | a running request fails, or is dropped before its response | it no longer counts |
//! | a response body ends, fails or is dropped | the request no longer counts |
//!
//! The response to a rejected request has the JSON body `{"error": {"code", "message"}}`, where
//! `code` is `too_many_runs_of_tenant` or `too_many_runs`.
//!
//! # Place in the stack
//!
//! Directly around [`AgUi`](crate::ag_ui::AgUi), on that route only, so that health checks and
//! static files do not count.
//!
//! Authentication goes outside: it sets the [`Tenant`](concentric_core::store::Tenant) in the
//! request's extensions. Requests without it share one tenant and its limits, so a server without
//! tenants sets [`queue_per_tenant`](AdmissionLayer::queue_per_tenant) to the value of
//! [`queue`](AdmissionLayer::queue).
//!
//! A request counts while its body is read.
//! [`AgUiLayer::upload_timeout`](crate::ag_ui::AgUiLayer::upload_timeout), 30 seconds by default,
//! bounds how long a slow upload occupies a place.
//!
//! All services of one layer and its clones share their limits. Limits on the work of a run, such
//! as concurrent model calls, go into the agent's stack.
//!
//! # Backpressure
//!
//! The service is always ready. A request waits in its future, so that it does not delay requests
//! of other tenants. Among the requests that may run, the queue is first in, first out. Both limits
//! bound the memory: a tenant without running or waiting requests has no entry.

mod body;
mod future;
pub(crate) mod gate;
mod layer;
mod service;

pub use self::{
    body::AdmissionBody, future::ResponseFuture, layer::AdmissionLayer, service::Admission,
};
