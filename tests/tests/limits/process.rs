//! The processes: each runs a part of a test, which it gets in the environment.

use super::{bar, dying};
use concentric_core::store::{BudgetStore, QuotaStore};
use concentric_store::{Options, PostgresStore, RedisStore};
use serde::{Deserialize, Serialize};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

const PART: &str = "CONCENTRIC_LIMITS_PART";

/// The store of a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub url: String,
    pub schema: String,
}

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    Compete(bar::Competitor),
    Reserve {
        name: String,
        id: String,
        limit: u64,
        lease_ms: u64,
        calls: u64,
    },
    Hold {
        lease_ms: u64,
        permits: usize,
        max: usize,
    },
}

pub type Quotas = Arc<dyn QuotaStore>;
pub type Budgets = Arc<dyn BudgetStore>;

impl Server {
    /// A new store in each server of the environment.
    pub async fn all(name: &str) -> Vec<Self> {
        let mut all = Vec::new();
        for variable in ["CONCENTRIC_REDIS_VOLATILE", "CONCENTRIC_POSTGRES"] {
            let Ok(url) = std::env::var(variable) else {
                println!("skipped without {variable}: `.ci/redis` or `.ci/postgres` sets it");
                continue;
            };
            let schema = format!("limits_{name}_{}", std::process::id());
            if url.starts_with("postgres") {
                PostgresStore::migrate(&url, &schema).await.unwrap();
            }
            all.push(Self { url, schema });
        }
        all
    }

    pub fn kind(&self) -> &str {
        self.url.split(':').next().unwrap_or_default()
    }

    pub async fn open(&self) -> (Quotas, Budgets) {
        let options = Options::new().schema(self.schema.as_str()).pool_size(4);
        if self.url.starts_with("postgres") {
            let store = PostgresStore::open_with(&self.url, options).await.unwrap();
            return (Arc::new(store.clone()), Arc::new(store));
        }
        let store = RedisStore::open_with(&self.url, options.accept_loss(true)).await;
        let store = store.unwrap();
        (Arc::new(store.clone()), Arc::new(store))
    }

    pub fn start(&self, part: &Part) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "process::process"])
            .env(PART, serde_json::to_string(&(self, part)).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }
}

pub struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    /// The next line that the process says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            // The harness of the tests prints the name of the test before.
            if let Some((_, said)) = line.split_once("> ") {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the process has ended")
    }

    pub fn kill(mut self) {
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn say(line: impl std::fmt::Display) {
    println!("> {line}");
}

pub fn unix() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

#[test]
#[ignore = "a child process of the tests of limits"]
fn process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let (server, part): (Server, Part) = serde_json::from_str(&part).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let (quotas, budgets) = server.open().await;
        match part {
            Part::Compete(competitor) => competitor.run(quotas).await,
            Part::Reserve {
                name,
                id,
                limit,
                lease_ms,
                calls,
            } => {
                dying::reserve(
                    budgets,
                    &name,
                    &id,
                    limit,
                    Duration::from_millis(lease_ms),
                    calls,
                )
                .await;
            }
            Part::Hold {
                lease_ms,
                permits,
                max,
            } => {
                dying::hold(quotas, Duration::from_millis(lease_ms), permits, max).await;
            }
        }
    });
}
