//! A layer that delays the commit point of an answer.
//!
//! A model's future resolves at its first content. A failure before that can be retried, hedged or
//! sent to another model; a later failure can't. [`CommitLayer`] moves this point to the first
//! sentence, to the complete answer, or to an event chosen by a predicate. Events before the point
//! are held. If the answer fails before the point, the future fails and no event is emitted.
//!
//! ```
//! use concentric_layers::CommitLayer;
//! use concentric_core::BoxModel;
//! use tower::ServiceBuilder;
//!
//! fn all_or_nothing(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             // A retry here handles every failure of the answer, and no event is emitted twice.
//!             .layer(CommitLayer::whole())
//!             .service(model),
//!     )
//! }
//! # let _ = all_or_nothing;
//! ```
//!
//! # Place in the stack
//!
//! Inside layers that retry, hedge or fail over, and around services that may fail late. Around an
//! agent, `whole` holds the run's events until its end, and the [`effects`](concentric_core::Error::effects)
//! of an error report whether its tools may have had side effects.
//!
//! See the [recommended order](crate::order).
//!
//! # Limits
//!
//! At most 1 MiB of events is held ([`CommitLayer::limit`]); an answer beyond that fails with
//! [`ErrorKind::TooLarge`](concentric_core::ErrorKind::TooLarge).

mod body;
mod future;
mod layer;
mod policy;
mod service;

#[cfg(feature = "guardrail")]
pub(crate) use self::future::held_bytes;
pub use self::{body::CommitBody, future::ResponseFuture, layer::CommitLayer, service::Commit};
