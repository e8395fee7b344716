//! Building blocks for layers, at three levels of effort.
//!
//! | you want to | write | costs |
//! |---|---|---|
//! | look at events, or change them where they are | [`inspect_events`], [`map_events()`] | nothing |
//! | drop, add, hold back or refuse events | a [`Transform`] | a box per call |
//! | change a request, skip a call, call again | [`from_fn()`], [`tool_from_fn`] | three boxes per call, an indirect call per event |
//! | do all of that at no cost, or have readiness of your own | a [`Layer`] and a [`Service`] | what you write |
//!
//! And layers that most agents want: [`DefaultsLayer`] for the system prompt and options,
//! [`CommitLayer`] to decide when an answer is shown, [`on_end()`] to be told once how it ended,
//! [`DebugLayer`] to see what passes at a place, [`OfRunLayer`] for what one run has of its own.
//!
//! All of them pass on readiness, take `S: Service` without asking for `Clone`, `Send` or
//! `'static` (the `from_fn`s and [`OfRunLayer`] do where they are put on, since they erase it), and
//! work outside and inside the loop alike.
//!
//! [`Layer`]: https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html
//! [`Service`]: tower_service::Service

pub mod commit;
pub mod debug;
pub mod defaults;
pub mod from_fn;
pub mod map_events;
pub mod of_run;
pub mod on_end;
pub mod transform;

pub use self::{
    commit::CommitLayer,
    debug::DebugLayer,
    defaults::DefaultsLayer,
    from_fn::{Next, NextTool, from_fn, tool_from_fn},
    map_events::{inspect_events, map_events},
    of_run::{ModelLayers, OfRunLayer},
    on_end::{End, on_end},
    transform::{Emit, Transform, TransformLayer},
};
