//! The amounts that were taken within the last period.

use super::{Quota, bucket::Amounts};
use std::{collections::VecDeque, time::Duration};

/// The parts of a period whose calls are counted together.
const PARTS: u32 = 16;

/// The calls of the last period. A bucket that was full at its start would otherwise grant its content and what
/// is added meanwhile, which is twice the quota.
#[derive(Default)]
pub(super) struct Recent(VecDeque<Part>);

struct Part {
    // The first and the last call.
    first: Duration,
    last: Duration,
    sum: Amounts,
    // The largest amounts of a call.
    most: Amounts,
}

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the calls of earlier periods.
    pub(super) fn expire(&mut self, quota: &Quota, now: Duration) {
        let is_over = |part: &Part| now.saturating_sub(part.last) >= quota.period();
        while self.0.front().is_some_and(is_over) {
            self.0.pop_front();
        }
    }

    pub(super) fn add(&mut self, quota: &Quota, amounts: &Amounts, now: Duration) {
        let is_of = |part: &&mut Part| now.saturating_sub(part.first) < quota.period() / PARTS;
        match self.0.back_mut().filter(is_of) {
            Some(part) => {
                part.last = part.last.max(now);
                part.include(amounts, amounts);
            }
            None => self.0.push_back(Part {
                first: now,
                last: now,
                sum: *amounts,
                most: *amounts,
            }),
        }
    }

    /// Returns the rest of what was taken at `at`.
    pub(super) fn give_back(&mut self, rest: &Amounts, at: Duration) {
        let is_of = |part: &&mut Part| (part.first..=part.last).contains(&at);
        if let Some(part) = self.0.iter_mut().find(is_of) {
            for (sum, rest) in part.sum.iter_mut().zip(rest) {
                // What was used beyond the estimate is owed by the bucket.
                *sum = (*sum - rest.max(0.0)).max(0.0);
            }
        }
    }

    /// The time after which a period with `amounts` has no more than the quota and one estimate.
    pub(super) fn wait(&self, quota: &Quota, amounts: &Amounts, now: Duration) -> Duration {
        let mut all = Part {
            first: now,
            last: now,
            sum: *amounts,
            most: *amounts,
        };
        let mut parts = self.0.iter().rev();
        let first_over = parts.find(|part| {
            all.include(&part.sum, &part.most);
            !all.fits(quota)
        });
        first_over.map_or(Duration::ZERO, |part| {
            part.last.saturating_add(quota.period()).saturating_sub(now)
        })
    }
}

impl Part {
    fn include(&mut self, sum: &Amounts, most: &Amounts) {
        for (own, other) in self.sum.iter_mut().zip(sum) {
            *own += other;
        }
        for (own, other) in self.most.iter_mut().zip(most) {
            *own = own.max(*other);
        }
    }

    /// Whether the sum is within the quota but for a part of one call: exactly for requests.
    fn fits(&self, quota: &Quota) -> bool {
        let amounts = self.sum.iter().zip(self.most).zip(quota.limits());
        let mut over = amounts.map(|((sum, most), limit)| *sum > limit + (most - 1.0).max(0.0));
        !over.any(|is_over| is_over)
    }
}
