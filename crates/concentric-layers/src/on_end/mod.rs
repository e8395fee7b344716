//! A layer that calls a function exactly once per call, with the way the answer ended.
//!
//! ```
//! use concentric_layers::{End, on_end};
//! use concentric_core::BoxModel;
//! use tower::ServiceBuilder;
//!
//! fn audit(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(on_end(|end: End<'_>| match end {
//!                 End::Finished(finish) => println!("used {:?}", finish.usage),
//!                 End::Failed(error) => println!("failed: {error}"),
//!                 End::Truncated | End::Dropped => println!("incomplete"),
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = audit;
//! ```
//!
//! # When the function is called
//!
//! | call | [`End`] | at the latest when |
//! |---|---|---|
//! | fails before it has a body | [`End::Failed`] | its future resolves |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | [`End::Finished`] | that item is yielded |
//! | yields an error | [`End::Failed`] | that item is yielded |
//! | ends without either | [`End::Truncated`] | `None` is yielded |
//! | is dropped before any of these, as a future or as a body | [`End::Dropped`] | it is dropped |
//!
//! The function is called while the body is polled or dropped, so it must not block, and must not
//! panic: a panic while a body is dropped during unwinding aborts the process.
//!
//! # Place in the stack
//!
//! Outside the loop, the function is called for each run; inside it, for each model call; inside a
//! retry, for each attempt.

mod body;
mod future;
mod layer;
mod service;

pub use self::{
    body::OnEndBody,
    future::ResponseFuture,
    layer::{OnEndLayer, on_end},
    service::OnEnd,
};
pub use concentric_core::hooks::End;
