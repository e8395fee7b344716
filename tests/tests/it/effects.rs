//! What a store's ledger records of the effects of tools.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, RunId, ToolOutcome, ToolStatus, Turn,
    store::{EffectKey, Intent, Ledger, LedgerEntry, StoreFuture},
};
use concentric_store::{MemoryStore, SqliteStore};
use concentric_test::ScriptedModel;
use concentric_tools::{NoArguments, RetryTool, Tool, Toolset, tool};
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{Layer, ServiceExt, retry::RetryLayer};

/// A ledger that keeps the keys it was given.
#[derive(Clone)]
struct Keys<L> {
    inner: L,
    keys: Arc<Mutex<Vec<EffectKey>>>,
}

impl<L: Ledger> Ledger for Keys<L> {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        self.keys.lock().unwrap().push(key.clone());
        self.inner.begin(key, intent)
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.inner.finish(key, outcome)
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.inner.known(key)
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.inner.retract(key)
    }
}

/// A tool that fails on its first call.
fn pay(ready: bool) -> Tool {
    let calls = Arc::new(AtomicUsize::new(0));
    tool("pay", "Pays.", move |NoArguments {}| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if !ready {
                tokio::task::yield_now().await;
            }
            match call {
                0 => Err(std::io::Error::other("the line is busy")),
                _ => Ok("paid"),
            }
        }
    })
    .keyed()
}

async fn a_repeated_call_is_recorded_as_done(ledger: impl Ledger + Clone) {
    for ready in [true, false] {
        let keys = Keys {
            inner: ledger.clone(),
            keys: Arc::default(),
        };
        let tools = Toolset::new()
            .tool(pay(ready))
            .ledger(keys.clone())
            .layer(RetryLayer::new(
                RetryTool::new(2).backoff(Duration::ZERO, Duration::ZERO),
            ));
        let model = ScriptedModel::new().tool_call("pay", json!({})).then();
        let agent = BoxModel::new(AgentLayer::new(tools).layer(model.text("Paid.")));
        let mut request = ChatRequest::user("Pay.");
        request.context = Context::builder()
            .run_id(RunId::new(format!("run-{ready}")))
            .build();
        let answer = agent.oneshot(request).await.unwrap().collect().await;
        let answer = answer.unwrap();
        let turns = answer.transcript().unwrap().iter();
        let read: Vec<_> = turns.flat_map(Turn::results).collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].outcome.status, ToolStatus::Done);
        assert_eq!(read[0].outcome.content.text(), "paid");
        let keys_of_call = keys.keys.lock().unwrap().clone();
        assert_eq!(keys_of_call.len(), 2);
        assert_eq!(keys_of_call[0], keys_of_call[1]);
        // A process that resumes the run reads the success.
        let known = ledger.known(keys_of_call[0].clone()).await.unwrap();
        let LedgerEntry::Finished(recorded) = known else {
            panic!("the effect is not finished: {known:?}");
        };
        assert_eq!(recorded.status, ToolStatus::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn in_memory_a_success_replaces_the_failure_before_it() {
    a_repeated_call_is_recorded_as_done(MemoryStore::new()).await;
}

#[tokio::test]
async fn in_sqlite_a_success_replaces_the_failure_before_it() {
    a_repeated_call_is_recorded_as_done(SqliteStore::open_in_memory().unwrap()).await;
}
