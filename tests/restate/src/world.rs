//! What the processes have done, in files that survive them.

use rustix::process::{Signal, getpid, kill_process};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub struct World(PathBuf);

impl World {
    pub fn new(dir: &Path) -> Self {
        for name in ["log", "plan", "hit", "keys"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        Self(dir.to_owned())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Appends a line to the log of a conversation, as several processes may at once.
    pub fn log(&self, thread: &str, line: &str) {
        let path = self.0.join("log").join(thread);
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub fn lines(&self, thread: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("log").join(thread)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The number of lines of a conversation that are `line`, or begin with it and a space.
    pub fn count(&self, thread: &str, line: &str) -> usize {
        let begins = |it: &&String| {
            it.strip_prefix(line)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        self.lines(thread).iter().filter(begins).count()
    }

    /// Plans a signal at a point of a conversation: `kill POINT` or `stop POINT`.
    pub fn plan(&self, thread: &str, signal: &str, point: &str) {
        fs::write(self.plan_of(thread, point), signal).unwrap();
    }

    fn plan_of(&self, thread: &str, point: &str) -> PathBuf {
        self.0.join("plan").join(format!("{thread}@{point}"))
    }

    /// A point that a process passes, and where its plan may end it: once.
    pub fn point(&self, thread: &str, point: &str) {
        let plan = self.plan_of(thread, point);
        let Ok(signal) = fs::read_to_string(&plan) else {
            return;
        };
        let hit = self.0.join("hit").join(format!("{thread}@{point}"));
        // One of several processes takes the plan.
        if fs::rename(&plan, &hit).is_err() {
            return;
        }
        self.log(thread, &format!("{signal} {point} {}", std::process::id()));
        let signal = match signal.as_str() {
            "stop" => Signal::STOP,
            _ => Signal::KILL,
        };
        kill_process(getpid(), signal).unwrap();
    }

    /// Does what a service that accepts keys does once per key; whether it was done now.
    pub fn once(&self, key: &str) -> bool {
        let path = self.0.join("keys").join(key.replace('/', "~"));
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .is_ok()
    }
}
