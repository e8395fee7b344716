//! Building blocks for layers, at several levels of effort.
//!
//! | task | use | cost |
//! |---|---|---|
//! | inspect events, or change them in place | [`inspect_events`], [`map_events()`] | none |
//! | drop, add, delay or reject events | a [`Transform`] | a box per call |
//! | change a request, skip a call, repeat a call | [`from_fn()`], [`tool_from_fn`] | three boxes per call, an indirect call per event |
//! | all of these without overhead, or with custom readiness | a [`Layer`] and a [`Service`] | depends on the implementation |
//!
//! The module also contains general-purpose layers: [`DefaultsLayer`] for the system prompt and
//! options, [`CommitLayer`] to delay the commit point of an answer, [`on_end()`] to observe how
//! each answer ended, [`DebugLayer`] to log events, and [`OfRunLayer`] for layers of a single run.
//!
//! All of them forward readiness and can be used outside and inside the loop. Only the `from_fn`
//! layers and [`OfRunLayer`] require an inner service that is `Clone`, `Send` and `'static`, to
//! erase its type.
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
