//! What the processes recorded: one line for each event, in one file.

use super::world::World;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file of a [`World`] with the events.
const FILE: &str = "history";

/// An event of a process, with its time by the clock of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    pub micros: u64,
    /// The number of the worker, and of its process.
    pub worker: (usize, u32),
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A run was stored, under the id of its storage, for the request with the other id.
    Begun {
        run: String,
        client: String,
        fence: u64,
    },
    /// A run was claimed, with the replies that it has.
    Claimed {
        run: String,
        client: String,
        fence: u64,
        is_abandoned: bool,
        replies: Vec<(String, String)>,
    },
    Suspended {
        run: String,
        fence: u64,
    },
    Ended {
        run: String,
        fence: u64,
    },
    /// A model was called.
    Step,
    /// The end of a request's answer, by the id of the request.
    Finished {
        client: String,
        request: u64,
        outcome: String,
    },
    Failed {
        client: String,
        request: u64,
        code: String,
        error: String,
    },
    /// Of the nemesis: what it did to a worker.
    Fault(String),
}

impl Note {
    pub fn at(&self) -> Duration {
        Duration::from_micros(self.micros)
    }
}

/// Records events of one process.
#[derive(Clone, Debug)]
pub struct Recorder {
    world: World,
    worker: (usize, u32),
}

impl Recorder {
    pub const fn new(world: World, worker: (usize, u32)) -> Self {
        Self { world, worker }
    }

    pub fn note(&self, what: What) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let note = Note {
            micros: u64::try_from(since.as_micros()).unwrap(),
            worker: self.worker,
            what,
        };
        let line = serde_json::to_string(&note).unwrap();
        self.world.append(FILE, &line);
    }
}

pub fn read(world: &World) -> Vec<Note> {
    let lines = world.lines(FILE);
    let read = |line: &String| serde_json::from_str(line).unwrap();
    lines.iter().map(read).collect()
}
