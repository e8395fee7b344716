//! Test doubles, record and replay, and the checks that a layer must pass, for Concentric.
//!
//! | to test | take |
//! |---|---|
//! | what an agent or a layer makes of a model's answers | [`ScriptedModel`], [`Gate`] |
//! | how it uses tools | [`ScriptedTools`] |
//! | time, ids and chance | [`TestEnvironment`] |
//! | that nothing depends on when a double is ready, and nothing spins | [`Pace`], [`watched`] |
//! | that a future or body can be dropped wherever it waits, and is woken | [`drop_at_each_wait`], [`Spurious`] |
//! | that a service is called only when it is ready | [`Strict`] |
//! | what came out | [`collect_events`], [`assert_finishes`], [`assert_fails`], [`shape`] |
//! | traffic with a real service, again and again | [`RecordLayer`](cassette::RecordLayer), [`ReplayLayer`](cassette::ReplayLayer) |
//! | that a layer of your own keeps the rules | [`check_layer`] |

pub mod cassette;
pub mod environment;
pub mod events;
mod gate;
pub mod layer_check;
pub mod model;
mod pace;
mod polls;
pub mod replay;
mod strict;
pub mod tools;

pub use self::{
    environment::{ManualClock, SeededRandom, SequentialIds, TestEnvironment},
    events::{assert_ends_early, assert_fails, assert_finishes, collect_events, shape, text_of},
    gate::Gate,
    layer_check::{TestModel, check_layer},
    model::ScriptedModel,
    pace::{PACE, Pace, watched},
    polls::{Spurious, drop_at_each_wait},
    strict::{Strict, StrictFuture},
    tools::ScriptedTools,
};
