//! The outside world: what tools do to it, and what happened, in files that survive every process.

use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

/// What a tool does to the world, and how often that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Nothing.
    ReadOnly,
    /// The same, however often.
    Idempotent,
    /// Something that the world does once per key.
    Keyed,
    /// Something that is not to be done twice, and the world does as often as it is told.
    AtMostOnce,
}

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// The store had a round's state before its tools ran.
    Checkpointed,
    /// The store had replies to these questions.
    Accepted(Vec<String>),
    /// Somebody was asked.
    Asked {
        id: String,
        reason: String,
        call: String,
    },
    /// A tool's function was entered.
    Started {
        call: String,
        class: Class,
        key: String,
        fence: u64,
    },
    /// The world was told to do it, and `did` it or not.
    Effect {
        call: String,
        key: String,
        did: bool,
    },
    /// A tool found out what came of a call.
    Reconciled { call: String, did: bool },
    /// A watcher was told that a call was approved.
    Approved(String),
    /// A consumer had the run's end, with the transcript.
    Over(serde_json::Value),
}

/// A folder of files.
#[derive(Clone, Debug)]
pub struct World(PathBuf);

impl World {
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("done")).unwrap();
        Self(dir.to_owned())
    }

    /// The path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn log(&self, entry: &Entry) {
        self.append("log", &serde_json::to_string(entry).unwrap());
    }

    /// Appends a line at once, as of a file that several processes append to.
    pub fn append(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.file(file))
            .unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.file(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn entries(&self) -> Vec<Entry> {
        let lines = self.lines("log");
        let read = |line: &String| serde_json::from_str(line).unwrap();
        lines.iter().map(read).collect()
    }

    fn slot(&self, key: &str) -> PathBuf {
        self.0.join("done").join(key.replace('/', "~"))
    }

    /// Writes into the slot of `key` unless somebody has: the slot is there with its content, or not
    /// at all.
    fn fill(&self, key: &str, content: &str) -> bool {
        let draft = format!("draft-{}-{}", std::process::id(), key.replace('/', "~"));
        let draft = self.0.join(draft);
        fs::write(&draft, content).unwrap();
        let linked = fs::hard_link(&draft, self.slot(key));
        fs::remove_file(&draft).unwrap();
        match linked {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Does what a tool of `class` does; whether it was done, now or before.
    pub fn act(&self, class: Class, call: &str, key: &str) -> bool {
        let did = match class {
            Class::ReadOnly => true,
            Class::Idempotent => {
                self.fill(key, "done");
                true
            }
            // As a payment service does: the key's second payment is the first one.
            Class::Keyed => {
                self.fill(key, "done");
                self.is_done(key)
            }
            // Done as often as it is told, unless somebody was told that it was not done.
            Class::AtMostOnce => {
                self.fill(key, "done");
                self.is_done(key)
            }
        };
        let (call, key) = (call.to_owned(), key.to_owned());
        self.log(&Entry::Effect { call, key, did });
        did
    }

    fn is_done(&self, key: &str) -> bool {
        fs::read_to_string(self.slot(key)).unwrap() == "done"
    }

    /// Finds out whether a call did what it does; one that did not can't any more.
    pub fn inquire(&self, key: &str) -> bool {
        self.fill(key, "given up");
        self.is_done(key)
    }

    /// The calls whose effect is there, each with its keys.
    pub fn done(&self) -> Vec<String> {
        let slots = fs::read_dir(self.0.join("done")).unwrap();
        let mut done: Vec<String> = slots
            .map(|slot| slot.unwrap())
            .filter(|slot| fs::read_to_string(slot.path()).unwrap() == "done")
            .map(|slot| call_of(&slot.file_name().to_string_lossy()).to_owned())
            .collect();
        done.sort();
        done
    }
}

/// The call that a key, a question or the name of a slot is of.
pub fn call_of(key: &str) -> &str {
    let last = key.rsplit(['/', '~']).next().unwrap_or(key);
    last.split('#').next().unwrap_or(last)
}
