//! A layer that decides when an answer is shown.
//!
//! A model's future resolves when its first content is there. Until then a failure may be retried,
//! hedged or sent elsewhere; after it, never. [`CommitLayer`] moves that point later: to the first
//! sentence, to the whole answer, to whatever a predicate says. What is read until then is held, and
//! if the answer fails before the point, its future fails and nothing was shown.
//!
//! ```
//! use concentric_core::layers::CommitLayer;
//! use concentric_core::BoxModel;
//! use tower::ServiceBuilder;
//!
//! fn all_or_nothing(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             // A retry here sees every failure of the answer, and repeats nothing.
//!             .layer(CommitLayer::whole())
//!             .service(model),
//!     )
//! }
//! # let _ = all_or_nothing;
//! ```
//!
//! # Place in the stack
//!
//! Inside what retries, hedges or fails over; around what may fail late. Around an agent,
//! `whole` holds the run's events until its end, and a failure's
//! [`effects`](crate::Error::effects) say whether its tools may have done something.
//!
//! # Limits
//!
//! At most 1 MiB of events is held ([`CommitLayer::limit`]); more is
//! [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge).

mod body;
mod future;
mod layer;
mod point;
mod service;

pub use self::{
    body::CommitBody,
    future::ResponseFuture,
    layer::CommitLayer,
    point::{FirstEvent, FirstSentence, Point, Until, Whole},
    service::Commit,
};
