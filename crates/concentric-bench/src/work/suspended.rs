//! A run that is suspended and resumed.

use super::{
    noop,
    script::{Model, Script},
};
use concentric_core::{
    AgentLayer, ChatRequest, Context, Event, Finish, ModelService, Outcome, Reply, ThreadId,
    machine::RunState,
};
use concentric_layers::suspend::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_tools::Toolset;
use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tower::{ServiceBuilder, ServiceExt};

const SCRIPT: Script = Script::Calls { turns: 1, each: 1 };

/// Returns the wall time of a run that is suspended and resumed, in nanoseconds: with its state
/// passed as JSON, and persisted in a SQLite file, where each acknowledged write is on the disk.
pub(crate) fn wall(runs: u32) -> [f64; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let tools = noop::asking();
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(runs);
    let memory = runtime.block_on(async {
        let start = Instant::now();
        for _ in 0..runs {
            in_memory(&tools).await;
        }
        start.elapsed()
    });
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("bench.db")).expect("a store");
    let store = Arc::new(store);
    let sqlite = runtime.block_on(async {
        let start = Instant::now();
        for run in 0..runs {
            in_sqlite(&tools, &store, run).await;
        }
        start.elapsed()
    });
    [each(memory), each(sqlite)]
}

async fn in_memory(tools: &Toolset) {
    let layer = AgentLayer::new(tools.clone());
    let agent = || {
        ServiceBuilder::new()
            .layer(layer.clone())
            .service(Model(SCRIPT))
    };
    let finish = finish(agent(), ChatRequest::user("hi")).await;
    let replies = approve(&finish);
    let state = finish.state.expect("a suspended run");
    let json = state.to_json().expect("valid JSON");
    let state = RunState::from_json(json.as_bytes(), 1 << 20).expect("a valid state");
    let resumed = self::finish(agent(), ChatRequest::resume(state, replies)).await;
    assert_eq!(resumed.outcome, Outcome::Completed);
}

async fn in_sqlite(tools: &Toolset, store: &Arc<SqliteStore>, run: u32) {
    let agent = || {
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(store)))
            .layer(AgentLayer::new(tools.clone()))
            .service(Model(SCRIPT))
    };
    let context = || {
        let thread = ThreadId::new(format!("thread-{run}"));
        Context::builder().thread_id(thread).build()
    };
    let request = ChatRequest::user("hi").with_context(context());
    let finish = finish(agent(), request).await;
    let request = ChatRequest::replying(approve(&finish)).with_context(context());
    let resumed = self::finish(agent(), request).await;
    assert_eq!(resumed.outcome, Outcome::Completed);
}

fn approve(finish: &Finish) -> Vec<Reply> {
    let asked = finish.interrupts().into_iter();
    asked.map(|ask| Reply::approve(ask.id.clone())).collect()
}

async fn finish(agent: impl ModelService, request: ChatRequest) -> Finish {
    let response = agent.oneshot(request).await.map_err(drop);
    let response = response.expect("the run must not fail");
    let mut body = pin!(response.body);
    loop {
        let item = poll_fn(|cx| futures_core::Stream::poll_next(body.as_mut(), cx)).await;
        if let Event::Finish(finish) = item.expect("a finish").expect("the run must not fail") {
            return *finish;
        }
    }
}
