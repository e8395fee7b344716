//! A run that is suspended and resumed.

use super::{
    growth::Later,
    noop,
    script::{Model, Script},
};
use concentric_core::{
    AgentLayer, ChatRequest, Context, Event, Finish, Message, ModelService, Outcome, Reply,
    ThreadId, Transcript, Turn, machine::RunState,
};
use concentric_layers::suspend::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_tools::Toolset;
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tower::{ServiceBuilder, ServiceExt};

const SCRIPT: Script = Script::Calls { turns: 1, each: 1 };

/// Returns the wall time of a run that is suspended and resumed, in nanoseconds: with its state
/// passed as JSON, and persisted in a SQLite file, where each acknowledged write is on the disk.
pub(crate) fn wall(runs: u32) -> [f64; 2] {
    let runtime = Builder::new_current_thread()
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
    suspended(tools, store, &said(1), u64::from(run)).await;
}

/// Suspends and resumes a run after `transcript`.
async fn suspended(tools: &Toolset, store: &Arc<SqliteStore>, transcript: &Transcript, run: u64) {
    let agent = || {
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(store)))
            .layer(AgentLayer::new(tools.clone()))
            .service(Later(SCRIPT, transcript.len() - 1))
    };
    let context = || {
        let thread = ThreadId::new(format!("thread-{run}"));
        Context::builder().thread_id(thread).build()
    };
    let request = ChatRequest::new(transcript.clone()).with_context(context());
    let finish = finish(agent(), request).await;
    let request = ChatRequest::replying(approve(&finish)).with_context(context());
    let resumed = self::finish(agent(), request).await;
    assert_eq!(resumed.outcome, Outcome::Completed);
}

/// A conversation of `messages` messages of 120 bytes, the last one of the user.
fn said(messages: usize) -> Transcript {
    let turn = |n| {
        let text = format!("{n:<120}");
        match (messages - n) % 2 {
            0 => Turn::message(Message::assistant(text)).expect("a message without calls"),
            _ => Turn::user(text),
        }
    };
    (0..messages).map(turn).collect()
}

/// A store in a file, with the runtime of its runs. The number of the next conversation is counted.
struct Stored {
    runtime: Runtime,
    store: Arc<SqliteStore>,
    next: AtomicU64,
    _folder: TempDir,
}

static STORED: LazyLock<Stored> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().build();
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("bench.db")).expect("a store");
    Stored {
        runtime: runtime.expect("a runtime"),
        store: Arc::new(store),
        next: AtomicU64::new(0),
        _folder: folder,
    }
});

impl Stored {
    fn next(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }
}

/// Runs in a SQLite file, each suspended and resumed after a number of messages.
pub(crate) fn after<const MESSAGES: usize>(count: u64) {
    static TOOLS: LazyLock<Toolset> = LazyLock::new(noop::asking);
    let transcript = said(MESSAGES);
    let stored = &*STORED;
    stored.runtime.block_on(async {
        for _ in 0..count {
            suspended(&TOOLS, &stored.store, &transcript, stored.next()).await;
        }
    });
}

/// The number of steps of each work of [`checkpoints`].
pub(crate) const STEPS: usize = 200;

/// Runs of `TURNS` steps, with [`STEPS`] steps together. Each stores its state in a SQLite file before its tool call.
pub(crate) fn checkpoints<const TURNS: usize>(count: u64) {
    static TOOLS: LazyLock<Toolset> = LazyLock::new(noop::toolset);
    let stored = &*STORED;
    let script = Script::Calls {
        turns: TURNS,
        each: 1,
    };
    let limit = u32::try_from(TURNS + 1).unwrap_or(u32::MAX);
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::clone(&stored.store)))
        .layer(AgentLayer::new(TOOLS.clone()).step_limit(limit))
        .service(Model(script));
    stored.runtime.block_on(async {
        for _ in 0..count * (STEPS / TURNS) as u64 {
            let thread = ThreadId::new(format!("thread-{}", stored.next()));
            let context = Context::builder().thread_id(thread).build();
            let request = ChatRequest::user("hi").with_context(context);
            let finish = finish(agent.clone(), request).await;
            assert_eq!(finish.outcome, Outcome::Completed);
        }
    });
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
