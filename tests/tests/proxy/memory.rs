//! How much memory this process has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    task::JoinHandle,
    time::sleep,
};

pub const MIB: u64 = 1024 * 1024;

// The tests that measure it run alone.
static MEMORY: RwLock<()> = RwLock::const_new(());

/// Held by a test that does not measure.
pub async fn shared() -> RwLockReadGuard<'static, ()> {
    MEMORY.read().await
}

/// Held by a test that does.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MEMORY.write().await
}

/// What is resident, in bytes (`/proc/self/status`).
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}

#[cfg(not(target_os = "linux"))]
fn resident() -> u64 {
    0
}

/// Looks at it again and again.
pub struct Watch {
    before: u64,
    most: JoinHandle<()>,
    highest: Arc<AtomicU64>,
}

impl Watch {
    pub fn start() -> Self {
        let before = resident();
        let highest = Arc::<AtomicU64>::default();
        let seen = Arc::clone(&highest);
        let most = tokio::spawn(async move {
            loop {
                seen.fetch_max(resident(), Ordering::Relaxed);
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self {
            before,
            most,
            highest,
        }
    }

    /// How much more there was at any time than at the beginning.
    pub fn grown(self) -> u64 {
        self.most.abort();
        let highest = self.highest.load(Ordering::Relaxed);
        let grown = highest.max(resident()).saturating_sub(self.before);
        println!("memory grew by {} KiB", grown / 1024);
        grown
    }
}
