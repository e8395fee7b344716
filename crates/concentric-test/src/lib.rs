//! Test doubles, record and replay, and contract checks for Concentric.
//!
//! | to test | use |
//! |---|---|
//! | an agent or a layer against scripted model responses | [`ScriptedModel`], [`Gate`] |
//! | the tool calls of an agent | [`ScriptedTools`] |
//! | code that uses time, ids or random numbers | [`TestEnvironment`] |
//! | code that stores runs, tool effects, decisions or used tokens | [`MemoryStore`] |
//! | what is logged | [`LogCapture`] |
//! | that nothing depends on when a double is ready, and nothing busy-loops | [`Pace`], [`watched`] |
//! | cancel safety at every await point, and wakeups | [`drop_at_each_wait`], [`Spurious`] |
//! | that a service is called only when it is ready | [`Strict`] |
//! | the events of a response body | [`collect_events`], [`assert_finishes`], [`assert_fails`], [`shape`] |
//! | code against recorded HTTP traffic | `cassette::RecordLayer`, `cassette::ReplayLayer` (feature `record`) |
//! | that a custom layer follows the contract of layers | [`check_layer`], [`check_tool_layer`] |
//! | that a custom gate follows the contract of gates | [`check_gate`], [`check_step_gate`] |
//! | that a run does the same when an engine of durable execution replays it | [`check_replay`] |
//! | that a custom store follows the contract of stores | `store_suite!` (feature `store`) |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "record")]
pub mod cassette;
pub mod environment;
pub mod events;
mod gate;
pub mod layer_check;
mod log;
pub mod model;
mod pace;
mod polls;
mod replay;
#[cfg(feature = "store")]
pub mod store;
mod strict;
pub mod tools;

#[cfg(feature = "store")]
pub use self::store::StoreHarness;
pub use self::{
    environment::{ManualClock, SeededRandom, SequentialIds, TestEnvironment},
    events::{assert_ends_early, assert_fails, assert_finishes, collect_events, shape, text_of},
    gate::Gate,
    layer_check::{check_gate, check_layer, check_step_gate, check_tool_layer},
    log::LogCapture,
    model::ScriptedModel,
    pace::{PACE, Pace, watched},
    polls::{Spurious, drop_at_each_wait},
    replay::check_replay,
    strict::{Strict, StrictFuture},
    tools::ScriptedTools,
};
#[doc(inline)]
pub use concentric_store::MemoryStore;
