// Imports of the examples of these pages, and a log that they write to.

#[allow(unused_imports)]
use concentric::{
    ask::*,
    call::*,
    capability::{Capability, Layers, Provides, Requires, declaring},
    chat::*,
    event::*,
    gate::*,
    hooks::{self, BeforeCall, End, Flow, HookFailures, Interest, Summary},
    id::*,
    interrupt::*,
    layers::{
        stop, CompactionLayer, DebugLayer, Emit, FallbackLayer, MakeSession, NextTool, ResponseCacheLayer, RetryModel,
        StopWhen, TransformLayer,
        inspect_events, map_events, response_cache::CacheScope, session::SessionTarget, tool_from_fn,
    },
    message::*,
    prelude::*,
    state::*,
    step_gate::*,
    tools::*,
    *,
};
#[allow(unused_imports)]
use concentric_test::{ScriptedModel, TestEnvironment};
#[allow(unused_imports)]
use serde_json::{Value, json};
#[allow(unused_imports)]
use std::{collections::HashMap, sync::{Arc, Mutex, OnceLock}, time::Duration};
#[allow(unused_imports)]
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

thread_local! {
    static LOG: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Records a line.
#[allow(dead_code)]
fn log(line: impl Into<String>) {
    LOG.with_borrow_mut(|log| log.push(line.into()));
}

/// Returns the recorded lines, including those of deferred work.
#[allow(dead_code)]
async fn logged() -> Vec<String> {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
    LOG.take()
}
