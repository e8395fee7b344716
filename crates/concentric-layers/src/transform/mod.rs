//! Layers that drop, add, delay or reject events, without a hand-written stream.
//!
//! ```
//! use concentric_layers::{Emit, Transform, TransformLayer};
//! use concentric_core::{BoxModel, Event, Str};
//! use tower::ServiceBuilder;
//!
//! /// Holds text until a line is complete.
//! #[derive(Default)]
//! struct Lines(String);
//!
//! impl Transform for Lines {
//!     fn event(&mut self, event: Event) -> Emit {
//!         match event {
//!             Event::TextDelta(text) => {
//!                 self.0.push_str(&text);
//!                 match self.0.rfind('\n') {
//!                     Some(end) => {
//!                         let rest = self.0.split_off(end + 1);
//!                         let lines = std::mem::replace(&mut self.0, rest);
//!                         Emit::One(Event::text(lines))
//!                     }
//!                     None => Emit::None,
//!                 }
//!             }
//!             other => Emit::Many(vec![Event::text(std::mem::take(&mut self.0)), other]),
//!         }
//!     }
//!
//!     fn flush(&mut self) -> Emit {
//!         Emit::One(Event::text(std::mem::take(&mut self.0)))
//!     }
//! }
//!
//! fn by_line(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(TransformLayer::new(|_request| Lines::default()))
//!             .service(model),
//!     )
//! }
//! # let _ = by_line;
//! ```
//!
//! # When the methods are called
//!
//! | inner body | called |
//! |---|---|
//! | created | the constructor function, with the request: each call has its own transform |
//! | yields an event that does not end it | [`Transform::event`] |
//! | yields [`Event::Finish`] | [`Transform::flush`], then [`Transform::finish`] |
//! | yields an error | [`Transform::flush`], then [`Transform::error`] |
//! | ends early | [`Transform::flush`] |
//! | not created, because the call failed | [`Transform::error`] |
//! | dropped | nothing; held events are discarded |
//!
//! # The commit point
//!
//! The future resolves when the transform emits the first content, so a retry outside this layer
//! can still repeat the call while all content is held. This costs one box per call.
//!
//! # Place in the stack
//!
//! Inside the loop, changes affect the run: a tool call that a transform drops is not executed.
//! Outside the loop, they affect only the consumer.
//!
//! See the [recommended order](crate::order).

use concentric_core::{Error, Event, Finish};

mod body;
mod future;
mod layer;
mod service;

pub use self::{
    body::TransformBody, future::ResponseFuture, layer::TransformLayer, service::TransformEvents,
};

/// Changes the events of one answer.
///
/// See the [module docs](self) for an example.
pub trait Transform {
    /// Processes an event and returns the events to emit.
    ///
    /// Not called with [`Event::Finish`]. If it emits one, the body ends, and the inner body is
    /// dropped.
    fn event(&mut self, event: Event) -> Emit;

    /// Emits held events before the answer ends.
    fn flush(&mut self) -> Emit {
        Emit::None
    }

    /// Processes the error by which the call or its answer failed; by default it is passed on.
    ///
    /// [`Emit::Fail`] fails with the same or another error: inside the loop, one that
    /// [halts](Error::halted) ends the run as halted, with its results so far. An
    /// [`Event::Finish`] ends the answer normally. Without either, the answer ends early.
    fn error(&mut self, error: Error) -> Emit {
        Emit::Fail(error)
    }

    /// Changes the finish of the answer.
    fn finish(&mut self, finish: &mut Finish) {
        let _ = finish;
    }
}

/// The result of a method of [`Transform`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Emit {
    /// No event: it was dropped, or is held by the transform.
    None,
    /// One event.
    One(Event),
    /// Several events, in order.
    Many(Vec<Event>),
    /// An error, which ends the answer.
    Fail(Error),
}
