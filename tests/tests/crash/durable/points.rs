//! The points at which a process may be killed or stopped.

use super::world::World;
use concentric_core::store::RunStore;
use concentric_store::SqliteStore;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

/// What is done at a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Plan {
    /// Nothing.
    #[default]
    Nothing,
    /// The points' names are written down.
    Trace,
    /// The process is killed at the point of that name.
    KillAt(String),
    /// The process is killed at the nth point.
    KillAtNth(u32),
    /// The process is stopped at the point of that name.
    StopAt(String),
}

/// The points of this process.
#[derive(Clone)]
pub struct Points {
    plan: Plan,
    world: World,
    counts: Arc<Mutex<HashMap<String, u32>>>,
    hits: Arc<AtomicU32>,
    store: Arc<OnceLock<SqliteStore>>,
}

impl Points {
    pub fn new(plan: Plan, world: World) -> Self {
        Self {
            plan,
            world,
            counts: Arc::default(),
            hits: Arc::default(),
            store: Arc::default(),
        }
    }

    /// Says which store this process writes to.
    pub fn writes_to(&self, store: &SqliteStore) {
        let _ = self.store.set(store.clone());
    }

    /// Waits until the store has written what it was given: a process that is stopped in the middle
    /// of a transaction has SQLite's lock, and nobody else can write until it is killed.
    fn finish_writing(&self) {
        let Some(store) = self.store.get().cloned() else {
            return;
        };
        let purge = move || super::actor::block(store.purge());
        thread::spawn(purge).join().unwrap().unwrap();
    }

    /// Has come to a point. The name is the same in each process that comes here, also if the calls
    /// of a round take turns in another order.
    pub fn hit(&self, name: &str) {
        let nth = self.hits.fetch_add(1, Ordering::SeqCst) + 1;
        let count = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(name.to_owned()).or_default();
            *count += 1;
            *count
        };
        let name = format!("{name}#{count}");
        let signal = match &self.plan {
            Plan::Nothing => return,
            Plan::Trace => return self.world.append("trace", &name),
            Plan::KillAt(at) if *at == name => Signal::KILL,
            Plan::KillAtNth(at) if *at == nth => Signal::KILL,
            Plan::StopAt(at) if *at == name => Signal::STOP,
            _ => return,
        };
        if signal == Signal::STOP {
            self.finish_writing();
        }
        kill_process(getpid(), signal).unwrap();
        // It is another thread that may be told first, and this one is to stay here meanwhile.
        super::actor::wait();
    }
}
