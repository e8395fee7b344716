//! W1: the model streams text, and each layer adds the bytes of every chunk to a counter.
//!
//! The layers are inside the loop, where they receive each event of a model call. W4b, a trivial
//! run, is W1 with one chunk.

use super::{
    counters, drive,
    drive::Seen,
    script::{BareModel, CHUNK, Model, Script},
};
use crate::bare;
use concentric_core::{AgentLayer, Event, NoTools};
use concentric_layers::inspect_events;
use tower::ServiceBuilder;

#[inline]
pub(super) fn count<const I: usize>(event: &Event) {
    if let Event::TextDelta(text) = event {
        counters::text::<I>(text.len());
    }
}

pub(super) fn expected(chunks: usize) -> Seen {
    Seen {
        text_bytes: (chunks * CHUNK) as u64,
        finishes: 1,
        ..Seen::default()
    }
}

/// An agent with one layer per number.
macro_rules! agent {
    ($script:expr $(, $i:literal)*) => {
        ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            $(.layer(inspect_events(count::<$i>)))*
            .service(Model($script))
    };
}
pub(super) use agent;

/// A bare model with one layer per number. It needs no loop, since it calls no tools.
macro_rules! bare_model {
    ($script:expr) => { BareModel($script) };
    ($script:expr, $i:literal $(, $rest:literal)*) => {
        bare::layers::CountText::<_, $i>(bare_model!($script $(, $rest)*))
    };
}
pub(super) use bare_model;

/// Defines the two sides of a work with these layers.
macro_rules! sides {
    ($name:ident, $k:literal $(, $i:literal)*) => {
        pub(crate) mod $name {
            use super::*;

            pub(crate) fn concentric<const CHUNKS: usize>(count: u64) {
                counters::reset();
                drive::concentric(
                    agent!(Script::Text(CHUNKS) $(, $i)*),
                    count,
                    expected(CHUNKS),
                );
                counters::assert($k, count * (CHUNKS * CHUNK) as u64, 0);
            }

            pub(crate) fn bare<const CHUNKS: usize>(count: u64) {
                counters::reset();
                drive::bare(
                    bare_model!(Script::Text(CHUNKS) $(, $i)*),
                    count,
                    expected(CHUNKS),
                );
                counters::assert($k, count * (CHUNKS * CHUNK) as u64, 0);
            }
        }
    };
}

sides!(k0, 0);
sides!(k1, 1, 0);
sides!(k5, 5, 0, 1, 2, 3, 4);
sides!(k10, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
