//! A layer that limits how many answers arrive at once.
//!
//! tower's `ConcurrencyLimit` counts a call until its future resolves. A model's future resolves at
//! its first token, so that limit is one on calls that have not spoken yet, and any number of
//! answers may stream behind it. [`InFlightLimit`] goes on counting until the answer has ended.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel, NoTools};
//! use concentric_layers::InFlightLimitLayer;
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     let agent = ServiceBuilder::new()
//!         .layer(AgentLayer::new(NoTools))
//!         // At most 8 answers of this model at a time, over all runs of all clones.
//!         .layer(InFlightLimitLayer::new(8))
//!         .service(model);
//!     BoxModel::new(agent)
//! }
//! # let _ = agent;
//! ```
//!
//! # When a call stops counting
//!
//! | the call | stops counting when |
//! |---|---|
//! | waits | it has not begun to |
//! | fails | its future resolves |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | that item is yielded |
//! | yields an error | that item is yielded |
//! | ends without either | `None` is yielded |
//! | is dropped, as a future or as a body | it is dropped |
//!
//! # Backpressure
//!
//! The service is always ready. A call waits in its future, where its run's deadline and cancel are
//! known: it fails with [`Timeout`](concentric_core::ErrorKind::Timeout) or
//! [`Cancelled`](concentric_core::ErrorKind::Cancelled) as soon as either ends the wait. Calls are served
//! in the order in which they came, and wait for the inner service once it is their turn.
//!
//! [`queue`](InFlightLimitLayer::queue) limits how many may wait; with 0 a call that would wait fails
//! with [`Overloaded`](concentric_core::ErrorKind::Overloaded), as under tower's `LoadShed`, which does
//! not work around this layer.
//!
//! # Place in the stack
//!
//! Inside the loop it limits model calls, and a run holds no permit while its tools run or a person
//! decides. Outside it limits runs, tools and all; then a sub-agent must not stand behind the same
//! limit as its parent, which would wait for itself: such a call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! Around a retry it counts the attempts as one call, back-off included; inside it each attempt
//! waits for its turn.

mod body;
mod future;
mod layer;
mod limit;
mod service;

pub use self::{
    body::InFlightBody, future::ResponseFuture, layer::InFlightLimitLayer, service::InFlightLimit,
};
