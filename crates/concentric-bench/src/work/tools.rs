//! W2: turns that call the tool once each. W3: a turn that calls it 100 times.
//!
//! The layers count before and after each call. In W3 the calls run concurrently, up to the
//! toolset's default limit of 16.

use super::{
    counters,
    drive::{self, Seen},
    noop,
    script::{self, BareModel, CHUNK, Model, Script},
};
use crate::bare::{self, layers::CountTool};
use concentric_core::AgentLayer;
use concentric_tools::Toolset;
use tower::{ServiceBuilder, service_fn};

pub(super) fn expected(calls: usize) -> Seen {
    Seen {
        text_bytes: CHUNK as u64,
        results: calls as u64,
        result_bytes: script::result_bytes(calls),
        finishes: 1,
    }
}

pub(super) fn run(tools: Toolset, layers: usize, count: u64, turns: usize, each: usize) {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools).step_limit(turns as u32 + 1))
        .service(Model(Script::Calls { turns, each }));
    counters::reset();
    drive::concentric(agent, count, expected(turns * each));
    counters::assert(layers, 0, count * (turns * each) as u64);
}

pub(crate) fn by_k0<const TURNS: usize, const EACH: usize>(count: u64) {
    run(noop::toolset(), 0, count, TURNS, EACH);
}

pub(crate) fn by_k5<const TURNS: usize, const EACH: usize>(count: u64) {
    run(noop::layered(), 5, count, TURNS, EACH);
}

pub(crate) fn by_k5_each<const TURNS: usize, const EACH: usize>(count: u64) {
    run(noop::layered_each(), 5, count, TURNS, EACH);
}

pub(crate) fn by_k5_functions<const TURNS: usize, const EACH: usize>(count: u64) {
    run(noop::functions(), 5, count, TURNS, EACH);
}

pub(crate) fn by_gated<const TURNS: usize, const EACH: usize>(count: u64) {
    run(noop::gated(), 0, count, TURNS, EACH);
}

pub(crate) fn bare_k0<const TURNS: usize, const EACH: usize>(count: u64) {
    let agent = bare::agent::Agent {
        model: BareModel(Script::Calls {
            turns: TURNS,
            each: EACH,
        }),
        tools: service_fn(noop::bare),
    };
    counters::reset();
    drive::bare(agent, count, expected(TURNS * EACH));
    counters::assert(0, 0, 0);
}

pub(crate) fn bare_k5<const TURNS: usize, const EACH: usize>(count: u64) {
    let tools = ServiceBuilder::new()
        .layer_fn(CountTool::<_, 0>)
        .layer_fn(CountTool::<_, 1>)
        .layer_fn(CountTool::<_, 2>)
        .layer_fn(CountTool::<_, 3>)
        .layer_fn(CountTool::<_, 4>)
        .service_fn(noop::bare);
    let agent = bare::agent::Agent {
        model: BareModel(Script::Calls {
            turns: TURNS,
            each: EACH,
        }),
        tools,
    };
    counters::reset();
    drive::bare(agent, count, expected(TURNS * EACH));
    counters::assert(5, 0, count * (TURNS * EACH) as u64);
}
