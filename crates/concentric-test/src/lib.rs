//! Test doubles, record and replay, and contract checks for Concentric.
//!
//! | to test | use |
//! |---|---|
//! | an agent or a layer against scripted model responses | [`ScriptedModel`], [`Gate`] |
//! | the tool calls of an agent | [`ScriptedTools`] |
//! | code that uses time, ids or random numbers | [`TestEnvironment`] |
//! | that nothing depends on when a double is ready, and nothing busy-loops | [`Pace`], [`watched`] |
//! | cancel safety at every await point, and wakeups | [`drop_at_each_wait`], [`Spurious`] |
//! | that a service is called only when it is ready | [`Strict`] |
//! | the events of a response body | [`collect_events`], [`assert_finishes`], [`assert_fails`], [`shape`] |
//! | code against recorded HTTP traffic | [`RecordLayer`](cassette::RecordLayer), [`ReplayLayer`](cassette::ReplayLayer) |
//! | that a custom layer follows the contract of layers | [`check_layer`] |

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
