//! The points at which a process may be killed or stopped.

use super::world::World;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
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
}

impl Points {
    pub fn new(plan: Plan, world: World) -> Self {
        Self {
            plan,
            world,
            counts: Arc::default(),
            hits: Arc::default(),
        }
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
        kill_process(getpid(), signal).unwrap();
    }
}
