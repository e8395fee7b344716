//! Budgets that processes share, and their arithmetic.

use super::{
    StoreFuture, Tenant,
    amounts::{Amounts, Limits, OverBudget},
    shared,
};
use concentric_proto::Str;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

shared! {
    /// Stores the spending of budgets, so that processes share them.
    ///
    /// Times are those of the clock of the store. The arithmetic is that of [`BudgetState`]. The budgets of a
    /// tenant are in one place, so a call that is charged to several names budgets of one tenant.
    pub trait BudgetStore: Send + Sync + 'static {
        /// Reserves `amounts` of all these budgets, the outermost first, or of none. Returns the first one with less
        /// left, and its error.
        ///
        /// `id` is a random id of the reservation; a repetition with the same id reserves nothing else. A reservation
        /// that is not settled within the time `lease`, because its process died, is charged in full: the provider
        /// may have been paid.
        fn reserve(
            &self,
            tenant: Tenant,
            id: Str,
            budgets: Vec<SharedBudget>,
            amounts: Amounts,
            lease: Duration,
        ) -> StoreFuture<Result<(), (Str, OverBudget)>>;

        /// Charges `actual` for a reservation, in the windows in which it was made. A repetition has no effect. Within
        /// an hour after the end of its lease, corrects what was charged then. A request to reserve that arrives up to
        /// a minute after this one, since it was late, reserves nothing.
        fn settle(&self, tenant: Tenant, id: Str, actual: Amounts) -> StoreFuture<()>;

        /// Adds `more` to the limits of a budget, until the end of the current window.
        fn extend(&self, tenant: Tenant, budget: SharedBudget, more: Amounts) -> StoreFuture<()>;

        /// Returns the spending of a budget in the current window, and its reservations.
        fn spent(&self, tenant: Tenant, budget: SharedBudget) -> StoreFuture<[Amounts; 2]>;
    }
}

/// A budget of a [`BudgetStore`], which is created when it is first used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SharedBudget {
    /// The name, unique for the tenant. A budget with another window is another one.
    pub name: Str,
    /// The limits of each window.
    pub limits: Limits,
    /// The time in which spending counts.
    pub window: BudgetWindow,
}

impl SharedBudget {
    /// Creates a budget whose spending counts always.
    pub fn new(name: impl Into<Str>, limits: Limits) -> Self {
        Self {
            name: name.into(),
            limits,
            window: BudgetWindow::Always,
        }
    }

    /// Sets the time in which spending counts.
    #[must_use]
    pub const fn per(mut self, window: BudgetWindow) -> Self {
        self.window = window;
        self
    }

    /// The name under which the budget is stored.
    pub fn key(&self) -> String {
        let window = match self.window {
            BudgetWindow::Always => "always".to_owned(),
            BudgetWindow::Hour => "hour".to_owned(),
            BudgetWindow::Day { offset } => format!("day{offset}"),
            BudgetWindow::Month { offset } => format!("month{offset}"),
        };
        format!("{window}:{}", self.name)
    }
}

/// The time in which the spending of a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetWindow {
    /// Always.
    Always,
    /// The last hour, up to a minute more.
    Hour,
    /// The current day.
    Day {
        /// The minutes by which its beginning is before that of UTC: 60 for UTC+1.
        offset: i32,
    },
    /// The current month.
    Month {
        /// The minutes by which its beginning is before that of UTC: 60 for UTC+1.
        offset: i32,
    },
}

impl BudgetWindow {
    /// Returns the number of the minute, the day or the month at a time since 1970.
    pub fn slot(self, now: Duration) -> i64 {
        let minutes = i64::try_from(now.as_secs() / 60).unwrap_or(i64::MAX / 2);
        let day = |offset| (minutes + i64::from(offset)).div_euclid(24 * 60);
        match self {
            Self::Always => 0,
            Self::Hour => minutes,
            Self::Day { offset } => day(offset),
            Self::Month { offset } => month(day(offset)),
        }
    }

    /// Returns whether a slot counts in the one of now.
    pub const fn counts(self, slot: i64, now: i64) -> bool {
        match self {
            Self::Hour => slot >= now - 60,
            _ => slot >= now,
        }
    }
}

/// The number of the month of a day, both since the beginning of 1970.
fn month(day: i64) -> i64 {
    // Days since March 1 of year 0, in eras of 400 years; a year ends with February.
    let days = day + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let since_march = (5 * of_year + 2) / 153;
    (era * 400 + year - 1970) * 12 + since_march + 2
}

/// The time for which a reservation whose lease has ended can still be settled.
const CORRECTED: Duration = Duration::from_secs(60 * 60);

/// The time for which a request to reserve may arrive after the settlement.
const SETTLED: Duration = Duration::from_secs(60);

/// The state of the budgets of a tenant in a [`BudgetStore`], and its arithmetic without I/O.
///
/// Times are since 1970. Sums saturate.
///
/// ```
/// use concentric_core::store::{Amounts, BudgetState, Limits, SharedBudget};
/// use std::time::Duration;
///
/// let (mut state, lease) = (BudgetState::default(), Duration::from_secs(60));
/// let budget = [SharedBudget::new("acme", Limits::new().money(100))];
/// let call = Amounts::new().money(60);
///
/// assert!(state.reserve("1", &budget, call, lease, Duration::ZERO).is_ok());
/// let (name, over) = state.reserve("2", &budget, call, lease, Duration::ZERO).unwrap_err();
/// assert_eq!((&*name, over.used), ("acme", 60));
/// state.settle("1", Amounts::new().money(10), Duration::ZERO);
/// assert!(state.reserve("2", &budget, call, lease, Duration::ZERO).is_ok());
/// // Its process dies.
/// assert_eq!(state.spent(&budget[0], lease)[0].money, 70);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetState {
    budgets: BTreeMap<String, Slots>,
    open: BTreeMap<Str, Reservation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Slots {
    window: BudgetWindow,
    slots: BTreeMap<i64, Slot>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Slot {
    spent: Amounts,
    reserved: Amounts,
    extended: Amounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reservation {
    // With the slot in which it was made.
    budgets: Vec<(String, i64)>,
    amounts: Amounts,
    until: Duration,
    // Whether its lease has ended.
    charged: bool,
}

impl Reservation {
    /// Whether it is the mark of a settlement that found no reservation.
    fn is_settled(&self) -> bool {
        self.charged && self.budgets.is_empty()
    }
}

impl BudgetState {
    /// Reserves amounts at the time `now`. See [`BudgetStore::reserve`].
    ///
    /// # Errors
    ///
    /// The name of the first budget with less left, and its error.
    pub fn reserve(
        &mut self,
        id: &str,
        budgets: &[SharedBudget],
        amounts: Amounts,
        lease: Duration,
        now: Duration,
    ) -> Result<(), (Str, OverBudget)> {
        self.expire(now);
        if self.open.contains_key(id) {
            return Ok(());
        }
        for budget in budgets {
            let [spent, reserved, extended] = self.sums(budget, now);
            let limits = budget.limits.plus(extended);
            let checked = limits.check(spent.plus(reserved), amounts);
            checked.map_err(|over| (budget.name.clone(), over))?;
        }
        let mut slots = Vec::new();
        for budget in budgets {
            let slot = self.slot(budget, now);
            slot.reserved = slot.reserved.plus(amounts);
            slots.push((budget.key(), budget.window.slot(now)));
        }
        let reservation = Reservation {
            budgets: slots,
            amounts,
            until: now.saturating_add(lease),
            charged: false,
        };
        self.open.insert(id.to_owned().into(), reservation);
        Ok(())
    }

    /// Settles a reservation at the time `now`. See [`BudgetStore::settle`].
    pub fn settle(&mut self, id: &str, actual: Amounts, now: Duration) {
        self.expire(now);
        match self.open.remove(id) {
            Some(reservation) if !reservation.is_settled() => self.charge(&reservation, actual),
            // The request to reserve may arrive later.
            _ => {
                let settled = Reservation {
                    budgets: Vec::new(),
                    amounts: Amounts::new(),
                    until: now.saturating_add(SETTLED),
                    charged: true,
                };
                self.open.insert(id.to_owned().into(), settled);
            }
        }
        self.forget(now);
    }

    /// Extends a budget at the time `now`. See [`BudgetStore::extend`].
    pub fn extend(&mut self, budget: &SharedBudget, more: Amounts, now: Duration) {
        self.expire(now);
        let slot = self.slot(budget, now);
        slot.extended = slot.extended.plus(more);
    }

    /// Returns the spending and the reservations of a budget at the time `now`. See [`BudgetStore::spent`].
    pub fn spent(&mut self, budget: &SharedBudget, now: Duration) -> [Amounts; 2] {
        self.expire(now);
        let [spent, reserved, _] = self.sums(budget, now);
        [spent, reserved]
    }

    /// Returns whether nothing is stored that still counts at the time `now`.
    pub fn is_empty(&mut self, now: Duration) -> bool {
        self.expire(now);
        self.forget(now);
        self.budgets.is_empty() && self.open.is_empty()
    }

    /// Charges the reservations whose leases have ended.
    fn expire(&mut self, now: Duration) {
        let ended: Vec<_> = self.open.iter().filter(|(_, it)| it.until <= now).collect();
        let ended: Vec<_> = ended
            .into_iter()
            .map(|(id, it)| (id.clone(), it.clone()))
            .collect();
        for (id, mut reservation) in ended {
            if reservation.charged {
                self.open.remove(&id);
                continue;
            }
            self.charge(&reservation, reservation.amounts);
            reservation.charged = true;
            reservation.until = reservation.until.saturating_add(CORRECTED);
            match reservation.until <= now {
                true => self.open.remove(&id),
                false => self.open.insert(id, reservation),
            };
        }
    }

    /// Replaces a reservation by its actual amounts.
    fn charge(&mut self, reservation: &Reservation, actual: Amounts) {
        for (key, slot) in &reservation.budgets {
            let slots = self.budgets.get_mut(key).map(|it| &mut it.slots);
            // A window that has ended does not count any more.
            if let Some(slot) = slots.and_then(|slots| slots.get_mut(slot)) {
                match reservation.charged {
                    true => slot.spent = slot.spent.minus(reservation.amounts),
                    false => slot.reserved = slot.reserved.minus(reservation.amounts),
                }
                slot.spent = slot.spent.plus(actual);
            }
        }
    }

    /// Forgets what does not count any more.
    fn forget(&mut self, now: Duration) {
        self.budgets.retain(|_, Slots { window, slots }| {
            let current = window.slot(now);
            slots.retain(|slot, it| window.counts(*slot, current) && *it != Slot::default());
            !slots.is_empty()
        });
    }

    /// The spending, the reservations and the extensions of a budget.
    fn sums(&self, budget: &SharedBudget, now: Duration) -> [Amounts; 3] {
        let current = budget.window.slot(now);
        let slots = self.budgets.get(&budget.key()).map(|it| &it.slots);
        let slots = slots.into_iter().flatten();
        let counted = slots.filter(|(slot, _)| budget.window.counts(**slot, current));
        counted.fold(
            [Amounts::new(); 3],
            |[spent, reserved, extended], (_, slot)| {
                [
                    spent.plus(slot.spent),
                    reserved.plus(slot.reserved),
                    extended.plus(slot.extended),
                ]
            },
        )
    }

    /// The current slot of a budget.
    fn slot(&mut self, budget: &SharedBudget, now: Duration) -> &mut Slot {
        let window = budget.window;
        let current = window.slot(now);
        let slots = self.budgets.entry(budget.key()).or_insert_with(|| Slots {
            window,
            slots: BTreeMap::new(),
        });
        slots.slots.retain(|slot, _| window.counts(*slot, current));
        slots.slots.entry(current).or_default()
    }
}
