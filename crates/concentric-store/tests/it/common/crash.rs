//! A crash of the server of a store.

use super::{client, key, running};
use concentric_core::store::{RunStore, StoreError};
use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const LEASE: Duration = Duration::from_secs(30);

const RUNS: usize = 20;

/// The last step of each run whose write was acknowledged.
type Acknowledged = BTreeMap<String, u64>;

/// Checks that no acknowledged write of 20 runs is lost by a crash of the server. `restart` is the command that
/// kills it, and starts it again.
pub(crate) async fn loses_no_acknowledged_write(store: impl RunStore + Clone, restart: String) {
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(Mutex::new(Acknowledged::new()));
    let drivers: Vec<_> = (0..RUNS)
        .map(|n| {
            let store = store.clone();
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            tokio::spawn(async move {
                let run = n.to_string();
                let begun = store.begin(key(&run), client(&run), running("hi").into(), LEASE);
                let fence = begun.await.unwrap();
                let mut lost = 0;
                for step in 0_u64.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let state = running(&step.to_string());
                    match store.save(key(&run), fence, state.into(), LEASE).await {
                        Ok(()) => {
                            acknowledged.lock().unwrap().insert(run.clone(), step);
                        }
                        Err(StoreError::Failed(_)) => lost += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                lost
            })
        })
        .collect();
    let before = beyond(&acknowledged, |_| 0).await;
    let restarted =
        tokio::task::spawn_blocking(move || Command::new("sh").args(["-c", &restart]).status());
    assert!(restarted.await.unwrap().unwrap().success());
    beyond(&acknowledged, |run| before[run]).await;
    stop.store(true, Ordering::SeqCst);
    let mut lost = 0;
    for driver in drivers {
        lost += driver.await.unwrap();
    }
    let acknowledged = acknowledged.lock().unwrap().clone();
    for (run, step) in acknowledged {
        let state = store.get(key(&run)).await.unwrap().state;
        // A save whose result was lost may have been applied.
        let last = [step, step + 1].map(|step| running(&step.to_string()));
        assert!(last.contains(&state), "run {run}, step {step}");
    }
    println!("{lost} saves failed during the restart");
}

/// Waits until a step of each run is acknowledged that is greater than `least`, and returns these.
async fn beyond(acknowledged: &Mutex<Acknowledged>, least: impl Fn(&str) -> u64) -> Acknowledged {
    let all = async {
        loop {
            let now = acknowledged.lock().unwrap().clone();
            if now.len() == RUNS && now.iter().all(|(run, step)| *step > least(run)) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, all).await.unwrap()
}
