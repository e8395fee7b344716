//! The status of stored runs, and their cancellation.

use super::*;
use concentric_core::{
    Outcome, interrupt,
    machine::RunState,
    store::{MAX_TAKEOVERS, Renewed, RunChange, RunStatus},
};
use concentric_store::Options;
use concentric_test::TestEnvironment;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);

struct World {
    environment: TestEnvironment,
    store: Arc<MemoryStore>,
    threads: Threads,
}

impl World {
    fn new() -> Self {
        let environment = TestEnvironment::new();
        let options = Options::new().clock(environment.clock().clone());
        let store = Arc::new(MemoryStore::with_options(options));
        let threads = Threads::new().runs(Arc::clone(&store));
        Self {
            environment,
            store,
            threads,
        }
    }

    /// Stores a run as another process does, which drives it.
    async fn begin(&self, run: &str, state: &RunState) -> (RunKey, u64) {
        let key = RunKey::new(
            Tenant("ada".into()),
            ThreadId::new("t"),
            RunId::new(format!("stored {run}")),
        );
        let change = RunChange::new(state);
        let fence = self
            .store
            .begin(key.clone(), RunId::new(run), change, LEASE);
        (key, fence.await.unwrap())
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.threads.clone(), by("ada", get(path))).await
    }

    /// The status of the run `r`.
    async fn status(&self) -> Value {
        let answer = self.get("/t/runs/r").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let status = answer.json();
        assert_eq!(
            (&status["threadId"], &status["runId"]),
            (&json!("t"), &json!("r"))
        );
        status["status"].clone()
    }

    async fn cancel(&self) -> Answer {
        send(self.threads.clone(), by("ada", cancel("/t/runs/r/cancel"))).await
    }
}

/// The state of a run that waits for an approval.
async fn state() -> RunState {
    let model = ScriptedModel::new().tool_call("pay", json!({"order": 7}));
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
        .service(model);
    let answer = agent.oneshot(ChatRequest::user("Pay.")).await.unwrap();
    *answer.collect().await.unwrap().finish.state.unwrap()
}

#[tokio::test]
async fn a_run_is_running_abandoned_and_quarantined() {
    let world = World::new();
    world.begin("r", &state().await).await;
    assert_eq!(world.status().await, "running");
    for _ in 0..MAX_TAKEOVERS {
        world.environment.advance(LEASE);
        assert_eq!(world.status().await, "abandoned");
        assert_eq!(
            world.store.claim_abandoned(1, LEASE).await.unwrap().len(),
            1
        );
        assert_eq!(world.status().await, "running");
    }
    world.environment.advance(LEASE);
    assert_eq!(world.status().await, "quarantined");
    let runs = world.get("/t/runs").await.json();
    let run = json!({"runId": "r", "status": "quarantined"});
    assert_eq!(runs, json!({"threadId": "t", "runs": [run]}));
}

#[tokio::test]
async fn a_waiting_run_has_its_interrupts_until_it_ends() {
    let world = World::new();
    let state = state().await;
    let (key, fence) = world.begin("r", &state).await;
    let change = RunChange::new(&state);
    world
        .store
        .suspend(key.clone(), fence, change)
        .await
        .unwrap();
    let run = world.get("/t/runs/r").await.json();
    assert_eq!(run["status"], "waiting");
    assert_eq!(run["outcome"]["type"], "interrupt");
    let asked = run["outcome"]["interrupts"].as_array().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["id"], state.interrupts()[0].id.as_str());
    assert_eq!(asked[0]["reason"], interrupt::TOOL_CALL.as_str());
    assert!(asked[0]["toolCallId"].is_string());

    // A reply resumes it, and it ends.
    let record = world.store.get(key.clone()).await.unwrap();
    let resumed = world.store.claim(record, Vec::new(), LEASE);
    let fence = resumed.await.unwrap().fence;
    let run = world.get("/t/runs/r").await.json();
    assert_eq!(
        (&run["status"], &run["outcome"]),
        (&json!("running"), &Value::Null)
    );
    world
        .store
        .end(key, fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let ended = world.get("/t/runs/r").await.json();
    let outcome = json!({"type": "success"});
    assert_eq!(
        (&ended["status"], &ended["outcome"]),
        (&json!("ended"), &outcome)
    );
    assert_eq!(world.get("/t/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_run_that_nobody_resumes_is_cancelled() {
    let world = World::new();
    let state = state().await;
    let wait = async |run: &str| {
        let (key, fence) = world.begin(run, &state).await;
        let suspended = world.store.suspend(key, fence, RunChange::new(&state));
        suspended.await.unwrap();
    };
    let end = async |reason: &str| {
        let ended = world.get("/t/runs/r").await.json();
        assert_eq!(ended["status"], "ended");
        assert_eq!(ended["outcome"], json!({"type": "cancelled"}));
        assert_eq!(ended["metadata"], json!({"reason": reason}));
    };
    wait("r").await;
    let tenant = Tenant("ada".into());
    let withdrawn = world.store.withdraw(tenant, ThreadId::new("t")).await;
    assert_eq!(withdrawn.unwrap(), 1);
    end("user").await;
    // The newest run of this id.
    let other = RunKey::new(
        Tenant("ada".into()),
        ThreadId::new("t"),
        RunId::new("newer"),
    );
    let change = RunChange::new(&state);
    let begun = world
        .store
        .begin(other.clone(), RunId::new("r"), change, LEASE);
    let fence = begun.await.unwrap();
    let suspended = world.store.suspend(other, fence, RunChange::new(&state));
    suspended.await.unwrap();
    assert_eq!(world.status().await, "waiting");
    world
        .environment
        .advance(Duration::from_secs(400 * 24 * 60 * 60));
    world.store.purge().await.unwrap();
    end("expired").await;
}

#[tokio::test]
async fn a_cancellation_reaches_the_process_that_drives_the_run() {
    let world = World::new();
    let state = state().await;
    assert_eq!(
        code(&world.cancel().await),
        (404, "run_not_found".to_owned())
    );
    let (key, fence) = world.begin("r", &state).await;
    let renew = || world.store.renew(key.clone(), fence, LEASE);
    assert_eq!(renew().await.unwrap(), Renewed::Held);
    for _ in 0..2 {
        let answer = world.cancel().await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        assert_eq!(answer.json(), json!({"threadId": "t", "runId": "r"}));
    }
    assert_eq!(renew().await.unwrap(), Renewed::CancelRequested);

    let change = RunChange::new(&state);
    world
        .store
        .suspend(key.clone(), fence, change)
        .await
        .unwrap();
    assert_eq!(code(&world.cancel().await), (409, "run_waiting".to_owned()));
    let record = world.store.get(key).await.unwrap();
    assert_eq!(record.status, RunStatus::Suspended);
}

#[tokio::test]
async fn other_tenants_have_no_access() {
    let world = World::new();
    let (key, fence) = world.begin("r", &state().await).await;
    for tenant in ["bob", ""] {
        for request in [
            get("/t/runs/r"),
            get("/t/runs/r/events"),
            cancel("/t/runs/r/cancel"),
        ] {
            let answer = send(world.threads.clone(), by(tenant, request)).await;
            assert_eq!(code(&answer), (404, "run_not_found".to_owned()));
        }
        let runs = send(world.threads.clone(), by(tenant, get("/t/runs"))).await;
        assert_eq!(runs.json()["runs"], json!([]));
    }
    let held = world.store.renew(key, fence, LEASE).await.unwrap();
    assert_eq!(held, Renewed::Held);
}
