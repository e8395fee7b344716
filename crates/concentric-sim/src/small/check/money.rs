//! The model of the money of tenants: each reservation is charged once, by its settlement or in full.

use super::Figures;
use crate::small::{
    agent::{PRICE, SharedLimits},
    history::{Ending, LimitAnswer, LimitKind, Note, What},
    outside::Provider,
    time::ProcessId,
};
use std::collections::BTreeMap;

struct Reservation {
    tenant: String,
    money: u64,
    until: u64,
    is_charged: bool,
}

pub(super) struct Money<'a> {
    shared: &'a SharedLimits,
    open: BTreeMap<String, Reservation>,
    // The spending and the reservations of each tenant.
    sums: BTreeMap<String, [u64; 2]>,
    // The calls of a process that begin at a time with a reservation, and all those without one, with whether they were answered.
    reserved: BTreeMap<ProcessId, (u64, u64)>,
    unreserved: BTreeMap<ProcessId, BTreeMap<(Provider, u64), bool>>,
    // The answers to calls with a reservation.
    answers: u64,
}

impl<'a> Money<'a> {
    pub(super) const fn new(shared: &'a SharedLimits) -> Self {
        Self {
            shared,
            open: BTreeMap::new(),
            sums: BTreeMap::new(),
            reserved: BTreeMap::new(),
            unreserved: BTreeMap::new(),
            answers: 0,
        }
    }

    fn sums(&mut self, tenant: &str) -> &mut [u64; 2] {
        self.sums.entry(tenant.to_owned()).or_default()
    }

    /// Charges the reservations whose leases have ended.
    fn expire(&mut self, now: u64, figures: &mut Figures) {
        for reservation in self.open.values_mut() {
            if reservation.until <= now && !reservation.is_charged {
                reservation.is_charged = true;
                figures.charged_in_full += 1;
                let [spent, reserved] = self.sums.entry(reservation.tenant.clone()).or_default();
                *reserved -= reservation.money;
                *spent += reservation.money;
            }
        }
    }

    /// Follows an event.
    pub(super) fn follow(&mut self, note: &Note, figures: &mut Figures, found: &mut Vec<String>) {
        let at = note.at;
        let mut wrong = |what: String| found.push(format!("{at} ms: {what}"));
        match (&note.what, note.process) {
            (
                What::Reserved {
                    tenant,
                    id,
                    money,
                    lease,
                    is_granted,
                    sums,
                },
                _,
            ) => {
                self.expire(at, figures);
                let limit = self.shared.money;
                let [spent, reserved] = *self.sums(tenant);
                // The other budget has twice as much.
                let fits = spent + reserved + money <= limit;
                if fits != *is_granted {
                    wrong(format!(
                        "{tenant} has {spent} and {reserved} of {limit}, and {money} is granted: {is_granted}"
                    ));
                }
                if *is_granted {
                    let [_, reserved] = self.sums(tenant);
                    *reserved += money;
                    let reservation = Reservation {
                        tenant: tenant.clone(),
                        money: *money,
                        until: at + lease,
                        is_charged: false,
                    };
                    if self.open.insert(id.clone(), reservation).is_some() {
                        wrong(format!("{tenant} has two reservations {id}"));
                    }
                }
                self.compare(tenant, sums, &mut wrong);
            }
            (
                What::Settled {
                    tenant,
                    id,
                    money,
                    sums,
                },
                _,
            ) => {
                self.expire(at, figures);
                if let Some(reservation) = self.open.remove(id) {
                    let [spent, reserved] = self.sums(tenant);
                    match reservation.is_charged {
                        true => *spent -= reservation.money,
                        false => *reserved -= reservation.money,
                    }
                    *spent += money;
                }
                self.compare(tenant, sums, &mut wrong);
            }
            (
                What::Answered {
                    kind: LimitKind::Money,
                    answer: Some(LimitAnswer::Reserved(true)),
                    ..
                },
                Some(process),
            ) => {
                let (calls, since) = self.reserved.entry(process).or_default();
                *calls = if *since == at { *calls + 1 } else { 1 };
                *since = at;
            }
            (What::Attempt { provider, id, .. }, Some(process)) => {
                let (calls, since) = self.reserved.entry(process).or_default();
                if *since == at && *calls > 0 {
                    *calls -= 1;
                    return;
                }
                let unreserved = self.unreserved.entry(process).or_default();
                unreserved.insert((*provider, *id), false);
                if self.shared.in_outage == 0 {
                    wrong(format!("{process:?} called a model without money"));
                }
            }
            (
                What::AttemptOver {
                    provider,
                    id,
                    ending: Ending::Success,
                    ..
                },
                Some(process),
            ) => {
                let calls = self.unreserved.entry(process).or_default();
                let Some(is_answered) = calls.get_mut(&(*provider, *id)) else {
                    self.answers += 1;
                    return;
                };
                *is_answered = true;
                let answers = calls.values().filter(|it| **it).count() as u64;
                if answers * PRICE > self.shared.in_outage {
                    wrong(format!("{process:?} has {answers} answers in outages"));
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, tenant: &str, stored: &[[u64; 2]], wrong: &mut impl FnMut(String)) {
        let own = *self.sums(tenant);
        if stored.iter().any(|stored| *stored != own) {
            wrong(format!("{tenant} has {own:?}, and in the store {stored:?}"));
        }
    }

    /// Checks what must be true in the end.
    pub(super) fn end(
        &mut self,
        now: u64,
        stored: &[(String, Vec<[u64; 2]>)],
        figures: &mut Figures,
        found: &mut Vec<String>,
    ) {
        self.expire(now, figures);
        let mut wrong = |what: String| found.push(format!("in the end, {what}"));
        for (tenant, stored) in stored {
            self.compare(tenant, stored, &mut wrong);
        }
        let charged: u64 = self.sums.values().flatten().sum();
        figures.money += charged;
        // The estimates of calls that were under way are not less.
        let least = PRICE * self.answers;
        if charged < least {
            wrong(format!("{charged} is charged for answers of {least}"));
        }
    }
}
