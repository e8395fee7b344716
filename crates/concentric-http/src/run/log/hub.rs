//! The logs of a process.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use concentric_core::{Environment, Str, store::Tenant};

use super::{
    run_log::{Format, RunLog},
    share::Shared,
};

/// The limits of the logs.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Per run.
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    /// Of all runs.
    pub(crate) total: usize,
    /// How many times the limits on events and bytes of a run may be exceeded while a client lacks the events.
    pub(crate) behind: (usize, usize),
    /// How long the log of an ended run is kept.
    pub(crate) linger: Duration,
}

/// The name by which clients find a run: its tenant, thread and run.
pub(crate) type Name = (Str, Str, Str);

/// The logs of the runs that a process drives, and of those that have ended recently.
pub(crate) struct Hub {
    pub(crate) limits: Limits,
    pub(crate) environment: Environment,
    /// The store from which other processes read the logs.
    pub(crate) shared: Option<Arc<Shared>>,
    // The bytes of all logs.
    bytes: AtomicUsize,
    // The number of logs so far.
    serial: AtomicU64,
    logs: Mutex<Logs>,
}

#[derive(Default)]
struct Logs {
    by_name: BTreeMap<Name, Arc<RunLog>>,
    // The logs of ended runs, in the order of their ends, with the monotonic time.
    ended: VecDeque<(Duration, Arc<RunLog>)>,
}

impl Hub {
    pub(crate) fn new(
        limits: Limits,
        environment: Environment,
        shared: Option<Arc<Shared>>,
    ) -> Self {
        Self {
            limits,
            environment,
            shared,
            bytes: AtomicUsize::new(0),
            serial: AtomicU64::new(0),
            logs: Mutex::default(),
        }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.environment.clock().monotonic()
    }

    /// Makes a log known under its name, unless that of a live run is. Returns whether it is known.
    pub(crate) fn add(&self, log: &Arc<RunLog>) -> bool {
        let now = self.now();
        let mut logs = self.lock();
        let expired = logs.expire(now, self.limits.linger);
        let known = logs.by_name.get(log.name());
        let is_new = known.is_none_or(|known| known.is_ended());
        if is_new {
            logs.by_name.insert(log.name().clone(), Arc::clone(log));
        }
        drop(logs);
        clear(expired);
        is_new
    }

    /// Notes that the run of a log has ended.
    pub(crate) fn ended(&self, log: &Arc<RunLog>) {
        let now = self.now();
        let mut logs = self.lock();
        logs.ended.push_back((now, Arc::clone(log)));
        drop(logs);
    }

    /// Removes a log.
    pub(crate) fn remove(&self, log: &Arc<RunLog>) {
        self.lock().forget(log);
        log.clear();
    }

    /// Returns the log of a run.
    pub(crate) fn find(&self, tenant: &Tenant, thread: &str, run: &str) -> Option<Arc<RunLog>> {
        let now = self.now();
        let mut logs = self.lock();
        let expired = logs.expire(now, self.limits.linger);
        let name = (tenant.0.clone(), thread.into(), run.into());
        let found = logs.by_name.get(&name).cloned();
        drop(logs);
        clear(expired);
        found
    }

    /// Returns the logs of a thread's runs.
    pub(crate) fn of_thread(&self, tenant: &Tenant, thread: &str) -> Vec<Arc<RunLog>> {
        let now = self.now();
        let mut logs = self.lock();
        let expired = logs.expire(now, self.limits.linger);
        let first = (tenant.0.clone(), Str::from(thread), Str::default());
        let is_of = |(of, it, _): &Name| *of == tenant.0 && it == thread;
        let found = logs.by_name.range(first..);
        let found = found.take_while(|(name, _)| is_of(name));
        let found = found.map(|(_, log)| Arc::clone(log)).collect();
        drop(logs);
        clear(expired);
        found
    }

    /// Returns the log of the newest live run of a thread, in this format or in any.
    pub(crate) fn newest(
        &self,
        tenant: &Tenant,
        thread: &str,
        format: Option<&Format>,
    ) -> Option<Arc<RunLog>> {
        let logs = self.of_thread(tenant, thread).into_iter();
        let is_in = |log: &RunLog| format.is_none_or(|it| it.name == log.format().name);
        logs.filter(|log| is_in(log) && !log.is_ended())
            .max_by_key(|log| log.serial())
    }

    /// The number of the next log.
    pub(super) fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed)
    }

    /// Returns the logs of the tenants, those of a tenant together.
    #[cfg(feature = "console")]
    pub(crate) fn of_tenants(&self, tenants: &[Tenant]) -> Vec<Arc<RunLog>> {
        let now = self.now();
        let mut logs = self.lock();
        let expired = logs.expire(now, self.limits.linger);
        let mut found = Vec::new();
        for tenant in tenants {
            let first = (tenant.0.clone(), Str::default(), Str::default());
            let of = logs.by_name.range(first..);
            let of = of.take_while(|((of, ..), _)| *of == tenant.0);
            found.extend(of.map(|(_, log)| Arc::clone(log)));
        }
        drop(logs);
        clear(expired);
        found
    }

    /// Counts bytes that a log has added.
    ///
    /// Returns whether all logs together are too large, although the logs of ended runs were removed.
    pub(crate) fn grown(&self, bytes: usize) -> bool {
        let total = self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if total <= self.limits.total {
            return false;
        }
        while self.is_full() {
            let mut logs = self.lock();
            let Some((_, oldest)) = logs.ended.pop_front() else {
                return true;
            };
            logs.forget(&oldest);
            drop(logs);
            oldest.clear();
        }
        false
    }

    pub(crate) fn shrunk(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Relaxed) > self.limits.total
    }

    /// Returns the number of logs, and their bytes.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.lock().by_name.len(), self.bytes.load(Relaxed))
    }
}

impl Logs {
    /// Removes the logs of runs that ended long ago. They are returned, since no other lock must be taken under
    /// that of the logs.
    fn expire(&mut self, now: Duration, linger: Duration) -> Vec<Arc<RunLog>> {
        let mut expired = Vec::new();
        while let Some((at, _)) = self.ended.front()
            && at.saturating_add(linger) <= now
            && let Some((_, log)) = self.ended.pop_front()
        {
            self.forget(&log);
            expired.push(log);
        }
        expired
    }

    /// Removes a log from the names.
    fn forget(&mut self, log: &Arc<RunLog>) {
        let known = self.by_name.get(log.name());
        if known.is_some_and(|known| Arc::ptr_eq(known, log)) {
            self.by_name.remove(log.name());
        }
    }
}

fn clear(logs: Vec<Arc<RunLog>>) {
    for log in logs {
        log.clear();
    }
}
