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
//! | fails | its future resolves |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | that item is yielded |
//! | yields an error | that item is yielded |
//! | ends without either | `None` is yielded |
//! | is dropped, as a future or as a body | it is dropped |
//!
//! # Backpressure
//!
//! The permit is taken in `poll_ready`: a caller waits there, and not in a call that has begun. A
//! service that was polled ready counts like a call until it is called or dropped, so let go of one
//! that is not needed. Waiting callers are served in the order they came.
//!
//! # Place in the stack
//!
//! Inside the loop it limits model calls, and a run holds no permit while its tools run or a person
//! decides. Outside it limits runs, tools and all; then a sub-agent must not stand behind the same
//! limit as its parent, which would wait for itself.
//!
//! Around a retry it counts the attempts as one call, back-off included; inside it each attempt
//! waits for its turn. `LoadShed` goes outside it, to refuse where it would wait.

mod body;
mod future;
mod layer;
mod service;

pub use self::{
    body::InFlightBody, future::ResponseFuture, layer::InFlightLimitLayer, service::InFlightLimit,
};
