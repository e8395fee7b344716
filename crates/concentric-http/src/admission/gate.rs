//! The counts of running requests and the queue of waiting ones.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use concentric_core::store::Tenant;
use tokio::sync::oneshot;

/// The limits of a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) total: usize,
    pub(crate) per_tenant: usize,
    pub(crate) queue: usize,
    pub(crate) queue_per_tenant: usize,
}

/// Counts running requests, and admits waiting requests when others end.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: usize,
    tenants: HashMap<Tenant, Runs>,
    /// The oldest waiting request of each tenant that is below its limit.
    next: BTreeMap<Ticket, Tenant>,
    issued: Ticket,
}

/// A position in the queue.
type Ticket = u64;

/// The requests of a tenant. A tenant without requests has no entry.
#[derive(Debug, Default)]
struct Runs {
    running: usize,
    waiting: BTreeMap<Ticket, oneshot::Sender<Permit>>,
}

/// The limit that prevents a request from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The limit of its tenant.
    Tenant,
    /// The limit of the server.
    Total,
}

impl Full {
    /// The limit that `tenant` has reached. Requests without a tenant share the default one, whose
    /// limit is reported as that of the server, since a single caller did not exhaust it.
    fn of(tenant: &Tenant) -> Self {
        match *tenant == Tenant::default() {
            true => Self::Total,
            false => Self::Tenant,
        }
    }
}

/// The decision about an arriving request.
#[derive(Debug)]
pub(crate) enum Arrival {
    Admitted(Permit),
    Waits(Waiting),
    Refused(Full),
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn arrive(self: &Arc<Self>, tenant: Tenant) -> Arrival {
        let limits = self.limits;
        let mut state = self.lock();
        let State {
            running,
            waiting,
            tenants,
            next,
            issued,
        } = &mut *state;
        let (own_running, own_waiting) = tenants
            .get(&tenant)
            .map_or((0, 0), |runs| (runs.running, runs.waiting.len()));
        let is_tenant_full = own_running >= limits.per_tenant;
        // This overtakes no waiting request: one that may run is admitted as soon as there is room.
        if !is_tenant_full && *running < limits.total {
            *running += 1;
            tenants.entry(tenant.clone()).or_default().running += 1;
            return Arrival::Admitted(Permit::new(self, tenant));
        }
        let full = match is_tenant_full {
            true => Full::of(&tenant),
            false => Full::Total,
        };
        // With a limit of zero, a request would wait forever.
        if limits.total == 0 || limits.per_tenant == 0 || *waiting >= limits.queue {
            return Arrival::Refused(full);
        }
        if own_waiting >= limits.queue_per_tenant {
            return Arrival::Refused(Full::of(&tenant));
        }
        let ticket = *issued;
        *issued += 1;
        *waiting += 1;
        let (sender, receiver) = oneshot::channel();
        if own_waiting == 0 && !is_tenant_full {
            next.insert(ticket, tenant.clone());
        }
        let runs = tenants.entry(tenant.clone()).or_default();
        runs.waiting.insert(ticket, sender);
        Arrival::Waits(Waiting {
            gate: Arc::clone(self),
            tenant,
            ticket,
            receiver,
        })
    }

    /// Returns the numbers of running and of waiting requests.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running, state.waiting)
    }

    /// Returns the number of tenants with requests.
    pub(super) fn tenants(&self) -> usize {
        self.lock().tenants.len()
    }

    fn leave(self: &Arc<Self>, tenant: &Tenant) {
        let admitted = {
            let mut state = self.lock();
            state.running = state.running.saturating_sub(1);
            state.with(tenant, self.limits, |runs| {
                runs.running = runs.running.saturating_sub(1);
            });
            state.admit(self)
        };
        hand_out(admitted);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Admitted = Vec<(oneshot::Sender<Permit>, Permit)>;

/// Sends the permits. Must not be called under the lock, which an unsent permit takes when it is
/// dropped.
fn hand_out(admitted: Admitted) {
    for (sender, permit) in admitted {
        drop(sender.send(permit));
    }
}

impl State {
    /// Changes the entry of a tenant, and updates `next` and `tenants` accordingly.
    fn with(&mut self, tenant: &Tenant, limits: Limits, change: impl FnOnce(&mut Runs)) {
        let Some(runs) = self.tenants.get_mut(tenant) else {
            return;
        };
        let before = runs.next(limits);
        change(runs);
        let after = runs.next(limits);
        if runs.running == 0 && runs.waiting.is_empty() {
            self.tenants.remove(tenant);
        }
        if before != after {
            if let Some(ticket) = before {
                self.next.remove(&ticket);
            }
            if let Some(ticket) = after {
                self.next.insert(ticket, tenant.clone());
            }
        }
    }

    /// Removes the requests that may run from the queue, with a permit for each.
    fn admit(&mut self, gate: &Arc<Gate>) -> Admitted {
        let limits = gate.limits;
        let mut admitted = Vec::new();
        while self.running < limits.total
            && let Some((ticket, tenant)) = self.next.first_key_value()
        {
            let (ticket, tenant) = (*ticket, tenant.clone());
            let mut sender = None;
            self.with(&tenant, limits, |runs| {
                sender = runs.waiting.remove(&ticket);
                runs.running += 1;
            });
            self.running += 1;
            self.waiting = self.waiting.saturating_sub(1);
            if let Some(sender) = sender {
                admitted.push((sender, Permit::new(gate, tenant)));
            }
        }
        admitted
    }
}

impl Runs {
    /// The oldest waiting request, if the tenant is below its limit.
    fn next(&self, limits: Limits) -> Option<Ticket> {
        let first = self.waiting.keys().next().copied();
        first.filter(|_| self.running < limits.per_tenant)
    }
}

/// The right to run, which counts towards the limits until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    tenant: Tenant,
}

impl Permit {
    fn new(gate: &Arc<Gate>, tenant: Tenant) -> Self {
        Self {
            gate: Arc::clone(gate),
            tenant,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.leave(&self.tenant);
    }
}

/// A waiting request, which leaves the queue when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    gate: Arc<Gate>,
    tenant: Tenant,
    ticket: Ticket,
    // Dropping it also drops a permit that was already sent.
    pub(super) receiver: oneshot::Receiver<Permit>,
}

impl Waiting {
    /// The limit that the request waits for.
    pub(super) fn full(&self) -> Full {
        let state = self.gate.lock();
        let running = state
            .tenants
            .get(&self.tenant)
            .map_or(0, |runs| runs.running);
        match running >= self.gate.limits.per_tenant {
            true => Full::of(&self.tenant),
            false => Full::Total,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        let mut sender = None;
        let ticket = self.ticket;
        state.with(&self.tenant, self.gate.limits, |runs| {
            sender = runs.waiting.remove(&ticket);
        });
        if sender.is_some() {
            state.waiting = state.waiting.saturating_sub(1);
        }
        drop(state);
        drop(sender);
    }
}
