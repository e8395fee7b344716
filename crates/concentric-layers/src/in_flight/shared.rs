//! Permits that processes share: a task holds as many as the process uses, and renews them.

use super::limit::Limit;
use crate::{
    shared::{OnAbort, OnOutage, Shared},
    shared_store::{random_id, within},
};
use concentric_core::{Str, context::Sleep, store::StoreError};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::Notify};

/// The longest time between two requests while permits are in use.
const RENEWAL: Duration = Duration::from_secs(1);

/// The time between two requests while calls wait.
const RETRY: Duration = Duration::from_millis(50);

/// The connection of a limit with its store.
#[derive(Debug)]
pub(super) struct Link {
    shared: Shared,
    max: usize,
    caller: Str,
    // The number of requests to the store.
    requests: AtomicU64,
    runs: AtomicBool,
    refuses: AtomicBool,
    issued: Mutex<Issued>,
    changed: Notify,
}

/// The permits of this process, in use or not, and how many of them it gives up when their responses end.
#[derive(Clone, Copy, Debug, Default)]
struct Issued {
    permits: usize,
    owed: usize,
}

impl Link {
    pub(super) fn new(max: usize, shared: Shared) -> Self {
        Self {
            max,
            caller: random_id(&shared.environment),
            shared,
            requests: AtomicU64::new(0),
            runs: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            issued: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }

    pub(super) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Acquire)
    }

    /// Asks the store for permits.
    pub(super) fn start(&self, limit: &Arc<Limit>) {
        let Ok(runtime) = Handle::try_current() else {
            tracing::error!("a shared limit needs a tokio runtime: its store is not asked");
            return;
        };
        self.changed.notify_one();
        if !self.runs.swap(true, Ordering::AcqRel) {
            let aborted = Arc::clone(limit);
            // The next call starts another one.
            let task = OnAbort::new(move || {
                if let Some(link) = aborted.link() {
                    // Nobody renews their lease.
                    link.issue(&aborted, 0);
                    link.runs.store(false, Ordering::Release);
                }
            });
            drop(runtime.spawn(work(Arc::clone(limit), task)));
        }
    }

    // A lease is measured in real time, so not by the clock of a run.
    fn sleep(&self, time: Duration) -> Sleep {
        self.shared.environment.clock().sleep(time)
    }

    async fn hold(&self, used: usize, wanted: usize) -> Result<u64, StoreError> {
        let shared = &self.shared;
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let (name, caller) = (shared.name.clone(), (self.caller.clone(), request));
        let hold = shared.store.hold(
            name,
            self.max as u64,
            caller,
            used as u64,
            wanted as u64,
            shared.lease,
        );
        let late = self.sleep(shared.patience);
        let held = within(late, hold).await;
        held.unwrap_or_else(|| Err(StoreError::failed("the store did not answer in time")))
    }

    /// The permits of this process while the store does not answer.
    fn in_outage(&self, error: &StoreError, wanted: usize) -> usize {
        let now = self.shared.environment.clock().monotonic();
        self.shared.failed(error, now);
        match self.shared.on_outage {
            // Those that wait get a permit, and fail.
            OnOutage::Allow | OnOutage::Refuse => wanted,
            OnOutage::LocalShare(_) => part(self.max, self.shared.local_share()),
        }
    }

    fn issued(&self) -> MutexGuard<'_, Issued> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a permit that is released is given up.
    pub(super) fn gives_up(&self) -> bool {
        let mut issued = self.issued();
        let Some(owed) = issued.owed.checked_sub(1) else {
            return false;
        };
        *issued = Issued {
            permits: issued.permits - 1,
            owed,
        };
        drop(issued);
        self.changed.notify_one();
        true
    }

    /// Gives up the permits beyond `permits` that are not in use; returns how many there are now.
    fn trim(&self, limit: &Limit, permits: usize) -> usize {
        let mut issued = self.issued();
        let over = issued.permits.saturating_sub(permits);
        issued.permits -= limit.permits().forget_permits(over);
        issued.permits
    }

    /// Changes the number of permits: those in use beyond it are given up when their responses end.
    fn issue(&self, limit: &Limit, permits: usize) {
        let mut issued = self.issued();
        let over = issued.permits.saturating_sub(permits);
        let now = issued.permits - limit.permits().forget_permits(over);
        issued.permits = now.max(permits);
        issued.owed = now.saturating_sub(permits);
        drop(issued);
        // Without the lock, since a call that is woken may release a permit.
        limit.permits().add_permits(permits.saturating_sub(now));
    }
}

/// At least one.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is between 0 and 1"
)]
fn part(max: usize, share: f64) -> usize {
    ((max as f64 * share) as usize).clamp(1, max)
}

/// Holds the permits of a limit while calls use them or wait for them.
async fn work(limit: Arc<Limit>, task: OnAbort<impl FnOnce()>) {
    let Some(link) = limit.link() else {
        return;
    };
    let mut is_idle = false;
    // The time until which the store may count permits of this process.
    let mut until = Duration::ZERO;
    let now = || link.shared.environment.clock().monotonic();
    loop {
        let waiting = limit.waiting();
        let used = link.issued().permits.saturating_sub(limit.available());
        if used + waiting == 0 && !is_idle {
            // Another call may follow.
            is_idle = true;
            let pause = link.shared.batch.min(link.shared.lease / 3);
            within(link.sleep(pause), link.changed.notified()).await;
            continue;
        }
        is_idle = false;
        // Those that are returned must not be used: another process has them before the answer is here.
        let issued = link.trim(&limit, used + waiting);
        let wanted = issued.max(used + waiting);
        if wanted > 0 {
            let most = link.shared.lease.saturating_add(link.shared.patience);
            until = now().saturating_add(most);
        }
        let pause = match link.hold(issued, wanted).await {
            Ok(allowed) => {
                if wanted == 0 {
                    until = Duration::ZERO;
                }
                link.refuses.store(false, Ordering::Release);
                link.issue(
                    &limit,
                    usize::try_from(allowed).unwrap_or(usize::MAX).min(link.max),
                );
                match allowed < wanted as u64 {
                    true => RETRY,
                    false => {
                        let longest = RENEWAL.min(link.shared.lease / 3);
                        link.shared.batch.clamp(RETRY, longest)
                    }
                }
            }
            Err(error) => {
                let refuses = link.shared.on_outage == OnOutage::Refuse;
                link.refuses.store(refuses, Ordering::Release);
                let permits = link.in_outage(&error, wanted);
                link.issue(&limit, permits);
                RENEWAL
            }
        };
        // Others lack permits that are not returned until the lease ends.
        if wanted == 0 && now() >= until {
            link.issue(&limit, 0);
            // A call may come in between. Either it finds that no task runs, or its place is seen here: both sides
            // read and write the flag at once.
            link.runs.swap(false, Ordering::AcqRel);
            if limit.waiting() == 0 || link.runs.swap(true, Ordering::AcqRel) {
                return task.end();
            }
            continue;
        }
        within(link.sleep(pause), link.changed.notified()).await;
    }
}
