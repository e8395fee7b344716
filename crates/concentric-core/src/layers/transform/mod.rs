//! Layers that drop, add, hold back or refuse events, without a hand-written stream.
//!
//! ```
//! use concentric_core::layers::{Emit, Transform, TransformLayer};
//! use concentric_core::{BoxModel, Event, Str};
//! use tower::ServiceBuilder;
//!
//! /// Holds text back until a line is whole.
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
//! # When what is called
//!
//! | the inner body | is called |
//! |---|---|
//! | is there | the maker, with the request: each call has a transform of its own |
//! | yields an event that does not end it | [`Transform::event`] |
//! | yields [`Event::Finish`] | [`Transform::flush`], then [`Transform::finish`] |
//! | yields an error, or ends early | [`Transform::flush`]; the error follows |
//! | is dropped | nothing: what was held back is gone |
//!
//! # The commit point
//!
//! The future resolves when the first content is let through, so a retry outside this layer may
//! still call again while all is held back. For that the body is boxed, once per call.
//!
//! # Place in the stack
//!
//! Inside the loop, what is dropped or changed never happened: a tool call that a transform drops is
//! not executed. Outside it, only the consumer does not see it.

mod body;
mod future;
mod layer;
mod service;

pub use self::{
    body::TransformBody, future::ResponseFuture, layer::TransformLayer, service::TransformEvents,
};

use concentric_proto::{Error, Event, Finish};

/// Changes the events of one answer.
///
/// See the [module docs](self) for an example.
pub trait Transform {
    /// Takes in an event, and says what comes of it.
    ///
    /// It is never given [`Event::Finish`]. If it emits one, the body ends with it, and what is
    /// inside is dropped.
    fn event(&mut self, event: Event) -> Emit;

    /// Lets go of what was held back, before the answer ends.
    fn flush(&mut self) -> Emit {
        Emit::None
    }

    /// Changes how the answer ended.
    fn finish(&mut self, finish: &mut Finish) {
        let _ = finish;
    }
}

/// What comes of an event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Emit {
    /// Nothing; it is dropped, or held back by the transform.
    None,
    /// One event.
    One(Event),
    /// Some events, in order.
    Many(Vec<Event>),
    /// An error, which ends the answer.
    Fail(Error),
}
