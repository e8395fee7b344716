//! The models of the quotas and permits that processes share.

use super::Figures;
use crate::small::{
    agent::{Settings, SharedLimits},
    history::{LimitAnswer, LimitKind, Note, What},
    outside::Provider,
    time::ProcessId,
};
use concentric_layers::OnOutage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The calls of other tenants that a waiting tenant may see begin before it: those of their turns, which are later by
/// less than a call for each process.
const TURNS: u64 = 4;

/// For which time the place of a process in the turns is kept after it should have asked.
const GRACE: u64 = 500;

/// The calls of a process to a provider.
#[derive(Default)]
struct Upstream {
    // The calls that the store has let begin, those that were returned, and those that began by it.
    taken: u64,
    returned: u64,
    begun: u64,
    // The calls that may begin at a monotonic time, and until another one.
    now: (u64, u64),
    ahead: (u64, u64),
    // Whether the store has not answered the last request about the quota and the permits.
    is_out: BTreeSet<LimitKind>,
    // The monotonic times at which calls of outages began that reached the provider: others are returned.
    recent: BTreeMap<u64, u64>,
    // The calls that began by the store, or at a monotonic time of an outage.
    passed: BTreeMap<u64, Option<u64>>,
    // The permits of calls, and whether the store knows them.
    permits: BTreeMap<u64, bool>,
    under_way: BTreeSet<u64>,
    // What the store knows of its permits, for how long, and the number of the last request.
    held: u64,
    wanted: u64,
    until: u64,
    request: u64,
}

/// The quota of a provider in the store.
#[derive(Default)]
struct Bucket {
    // The times of changes: calls that may begin, and calls that were returned.
    taken: VecDeque<(u64, u64)>,
    returned: VecDeque<(u64, u64)>,
    // The tenants that wait: their processes with the ends of their places, and the calls of others that began since.
    waiting: BTreeMap<String, (BTreeMap<ProcessId, u64>, u64)>,
}

pub(super) struct Shared<'a> {
    settings: &'a Settings,
    shared: &'a SharedLimits,
    upstreams: BTreeMap<Provider, BTreeMap<ProcessId, Upstream>>,
    buckets: BTreeMap<String, Bucket>,
}

fn provider_of(limit: &str) -> Option<Provider> {
    [Provider::First, Provider::Second]
        .into_iter()
        .find(|provider| format!("{provider:?}") == limit)
}

impl<'a> Shared<'a> {
    pub(super) const fn new(settings: &'a Settings, shared: &'a SharedLimits) -> Self {
        Self {
            settings,
            shared,
            upstreams: BTreeMap::new(),
            buckets: BTreeMap::new(),
        }
    }

    fn upstream(&mut self, provider: Provider, process: ProcessId) -> &mut Upstream {
        let processes = self.upstreams.entry(provider).or_default();
        processes.entry(process).or_default()
    }

    /// The share of a limit that a process applies in an outage.
    fn local(&self, limit: u64) -> Option<u64> {
        match self.shared.on_outage {
            OnOutage::LocalShare(share) => Some(((limit as f64 * share) as u64).max(1)),
            OnOutage::Refuse => Some(0),
            OnOutage::Allow => None,
        }
    }

    /// Follows an event.
    pub(super) fn follow(&mut self, note: &Note, figures: &mut Figures, found: &mut Vec<String>) {
        let Some(process) = note.process else { return };
        let at = note.at;
        let mut wrong = |what: String| found.push(format!("{at} ms: {process:?} {what}"));
        match &note.what {
            What::Taken {
                limit,
                calls,
                ahead,
                wait,
            } => self.taken(process, at, (limit, calls, *ahead, *wait), &mut wrong),
            What::Returned {
                limit,
                calls,
                rejected,
            } => self.returned(process, at, (limit, *calls, *rejected), &mut wrong),
            What::Answered {
                limit,
                kind: kind @ (LimitKind::Quota | LimitKind::Permits),
                mono,
                answer,
            } => {
                let batch = self.shared.batch * 1_000;
                let Some(provider) = provider_of(limit) else {
                    return wrong(format!("asked for {limit}"));
                };
                let upstream = self.upstream(provider, process);
                match answer {
                    None => drop(upstream.is_out.insert(*kind)),
                    Some(answer) => {
                        upstream.is_out.remove(kind);
                        if let LimitAnswer::Calls { now, ahead } = answer {
                            upstream.now = (*now, *mono);
                            if *ahead > 0 {
                                upstream.ahead = (*ahead, mono + batch);
                            }
                        }
                    }
                }
            }
            What::Passed { provider, id, mono } => {
                if let Some(what) = self.passed(*provider, process, *id, *mono, figures) {
                    wrong(what);
                }
            }
            What::Held {
                limit,
                request,
                used,
                wanted,
                allowed,
                lease,
            } => self.held(
                process,
                at,
                (limit, *request),
                [*used, *wanted, *allowed, *lease],
                &mut wrong,
            ),
            What::Permitted { provider, id } => {
                let upstream = self.upstream(*provider, process);
                let is_known = !upstream.is_out.contains(&LimitKind::Permits);
                upstream.permits.insert(*id, is_known);
            }
            What::Attempt { provider, id, .. } => {
                let upstream = self.upstream(*provider, process);
                upstream.under_way.insert(*id);
                match upstream.passed.remove(id) {
                    Some(None) => upstream.begun += 1,
                    Some(Some(mono)) => {
                        if let Some(what) = self.in_outage(*provider, process, mono) {
                            wrong(what);
                        }
                    }
                    None => {}
                }
                self.concurrent(*provider, process, at, &mut wrong);
            }
            What::AttemptOver { provider, id, .. } => {
                let upstream = self.upstream(*provider, process);
                upstream.under_way.remove(id);
                upstream.permits.remove(id);
            }
            _ => {}
        }
    }

    // ---- quotas ----

    /// The store lets calls begin: no period has more than the quota, but for those that were returned.
    fn taken(
        &mut self,
        process: ProcessId,
        at: u64,
        (limit, calls, ahead, wait): (&str, &[(String, u64, u64)], u64, u64),
        wrong: &mut impl FnMut(String),
    ) {
        let Settings { quota, period, .. } = *self.settings;
        let bucket = self.buckets.entry(limit.to_owned()).or_default();
        let granted: u64 = calls.iter().map(|(_, _, granted)| granted).sum();
        if granted + ahead > 0 {
            bucket.taken.push_back((at, granted + ahead));
            bucket.taken.retain(|(then, _)| then + period > at);
            bucket.returned.retain(|(then, _)| then + period > at);
            let sum = |all: &VecDeque<(u64, u64)>| all.iter().map(|(_, n)| n).sum::<u64>();
            let (taken, returned) = (sum(&bucket.taken), sum(&bucket.returned));
            if taken > quota + returned {
                wrong(format!(
                    "is the last of {taken} calls of {limit} in a period, of which {returned} were returned"
                ));
            }
        }
        for (tenant, _, granted) in calls {
            for (other, (_, since)) in &mut bucket.waiting {
                if other != tenant {
                    *since += granted;
                }
            }
        }
        for (tenant, wanted, granted) in calls {
            let (places, since) = bucket.waiting.entry(tenant.clone()).or_default();
            places.retain(|_, until| *until > at);
            let has_place = places.remove(&process).is_some();
            if *granted > 0 || places.is_empty() && !has_place {
                *since = 0;
            }
            if granted < wanted {
                if has_place && *since > TURNS {
                    wrong(format!(
                        "waits for {limit} again with {tenant}, after {since} calls of others"
                    ));
                }
                places.insert(process, at + wait + GRACE);
                if *granted == 0 {
                    // What others get before the next time may be what is left beside this tenant.
                    *since = 0;
                }
            }
        }
        bucket.waiting.retain(|_, (places, _)| !places.is_empty());
        if let Some(provider) = provider_of(limit) {
            self.upstream(provider, process).taken += granted + ahead;
        }
    }

    /// Calls are returned that were taken and have not begun.
    fn returned(
        &mut self,
        process: ProcessId,
        at: u64,
        (limit, calls, rejected): (&str, u64, bool),
        wrong: &mut impl FnMut(String),
    ) {
        let bucket = self.buckets.entry(limit.to_owned()).or_default();
        bucket.returned.push_back((at, calls));
        if rejected {
            // The quota is halved, and those that wait begin later.
            bucket.waiting.clear();
        }
        if let Some(provider) = provider_of(limit) {
            let upstream = self.upstream(provider, process);
            upstream.returned += calls;
            let (returned, begun, taken) = (upstream.returned, upstream.begun, upstream.taken);
            if returned + begun > taken {
                wrong(format!(
                    "has returned {returned} and begun {begun} of {taken} calls of {limit}"
                ));
            }
        }
    }

    /// A call begins by the store, or by the share of its process in an outage. Returns why it should not have.
    fn passed(
        &mut self,
        provider: Provider,
        process: ProcessId,
        id: u64,
        mono: u64,
        figures: &mut Figures,
    ) -> Option<String> {
        let upstream = self.upstream(provider, process);
        let is_out = upstream.is_out.contains(&LimitKind::Quota);
        let now = &mut upstream.now;
        if now.1 == mono && now.0 > 0 {
            now.0 -= 1;
        } else if !is_out && mono < upstream.ahead.1 && upstream.ahead.0 > 0 {
            upstream.ahead.0 -= 1;
        } else {
            figures.outage_calls += 1;
            upstream.passed.insert(id, Some(mono));
            return (!is_out).then(|| format!("began a call of {provider:?} without its quota"));
        }
        figures.shared_calls += 1;
        upstream.passed.insert(id, None);
        None
    }

    /// A call that began in an outage at `mono` reaches the provider. Returns why it should not have.
    fn in_outage(&mut self, provider: Provider, process: ProcessId, mono: u64) -> Option<String> {
        let local = self.local(self.settings.quota)?;
        let period = self.settings.period * 1_000;
        let recent = &mut self.upstream(provider, process).recent;
        *recent.entry(mono).or_default() += 1;
        let begins = recent.range(mono.saturating_sub(period - 1)..=mono);
        let calls = begins.map(|(begin, _)| recent.range(*begin..begin + period));
        let most = calls.map(|calls| calls.map(|(_, calls)| calls).sum::<u64>());
        let most = most.max().unwrap_or_default();
        (most > local).then(|| {
            format!("began {most} calls of {provider:?} in a period of an outage, of {local}")
        })
    }

    // ---- permits ----

    /// The store lets a process have permits for the time of a lease.
    fn held(
        &mut self,
        process: ProcessId,
        at: u64,
        (limit, request): (&str, u64),
        [used, wanted, allowed, lease]: [u64; 4],
        wrong: &mut impl FnMut(String),
    ) {
        let max = self.settings.in_flight as u64;
        let Some(provider) = provider_of(limit) else {
            return wrong(format!("asked for {limit}"));
        };
        let upstream = self.upstream(provider, process);
        if upstream.until > at && upstream.request > request {
            // A later request has arrived before.
            if allowed > 0 {
                wrong(format!(
                    "has {allowed} permits of {limit} by a late request"
                ));
            }
            return;
        }
        upstream.request = request;
        let processes = self.upstreams.entry(provider).or_default();
        let others = processes
            .iter()
            .filter(|(name, it)| **name != process && it.until > at);
        let (others, wanting) = others.fold((0, 1), |(held, wanting), (_, it)| {
            (held + it.held, wanting + u64::from(it.wanted > 0))
        });
        if allowed > max.saturating_sub(others) {
            wrong(format!(
                "may have {allowed} permits of {limit} beside {others} of others"
            ));
        }
        // More processes than permits have them in turn.
        if wanted > 0 && allowed == 0 && others < max && wanting <= max {
            wrong(format!(
                "has no permit of {limit} beside {others} of others"
            ));
        }
        let upstream = processes.entry(process).or_default();
        if upstream.until <= at {
            upstream.lost();
        }
        upstream.held = allowed.max(used);
        upstream.wanted = wanted;
        upstream.until = at + lease;
    }

    /// The calls whose permits the store knows are no more than there are.
    fn concurrent(
        &mut self,
        provider: Provider,
        process: ProcessId,
        at: u64,
        wrong: &mut impl FnMut(String),
    ) {
        let max = self.settings.in_flight;
        let processes = self.upstreams.entry(provider).or_default();
        let mut all = 0;
        for (name, upstream) in processes {
            if upstream.until <= at {
                upstream.lost();
            }
            let calls = upstream.under_way.len();
            if *name == process && calls > max {
                wrong(format!("has {calls} calls of {provider:?} under way"));
            }
            let known = upstream.under_way.iter();
            let known = known.filter(|id| upstream.permits.get(id) == Some(&true));
            all += known.count();
        }
        if all > max {
            wrong(format!(
                "has begun the last of {all} concurrent calls of {provider:?}"
            ));
        }
    }
}

impl Upstream {
    /// The lease of its permits has ended, so others may have them.
    fn lost(&mut self) {
        for is_known in self.permits.values_mut() {
            *is_known = false;
        }
    }
}
