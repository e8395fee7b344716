use super::{Amounts, Limits, OverBudget, RunBudgetLayer};
use concentric_core::{
    Capability, Context,
    state::{Durable, Scope, Slot, SlotError},
};
use serde::{Deserialize, Serialize};
use std::{
    any::type_name,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What may be spent, and what has been: a handle, whose clones share it.
///
/// What is about to be spent is [reserved](Self::reserve) first, in all dimensions or none, and
/// [settled](Lease::settle) when it is known. A budget may be of a run
/// ([`BudgetLayer::run`](super::BudgetLayer::run)), or of whatever has more than one: a
/// conversation, a user, a tenant.
///
/// ```
/// use concentric_layers::budget::{Amounts, Budget, Dimension, Limits};
///
/// let budget = Budget::new(Limits::new().money(1_000).model_calls(3));
/// let call = Amounts::new().money(600).model_calls(1);
///
/// let first = budget.reserve(call)?;
/// // Two of these don't fit, even while nobody knows what the first one costs.
/// let over = budget.reserve(call).unwrap_err();
/// assert_eq!((over.dimension, over.used, over.wanted), (Dimension::Money, 600, 600));
///
/// first.settle(call.money(250));
/// assert!(budget.reserve(call).is_ok());
/// assert_eq!(budget.spent().money, 250);
/// # Ok::<_, concentric_layers::budget::OverBudget>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Node>);

impl Capability for Budget {
    fn provider() -> Option<&'static str> {
        Some(type_name::<RunBudgetLayer>())
    }
}

impl Budget {
    /// Creates a budget of which nothing is spent.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, None, OfRun::default())
    }

    /// The budget of the run of `context`, within the one that is there, if one is.
    pub(super) fn of_run(limits: Limits, asks: Option<Amounts>, context: &Context) -> Self {
        // To look at it is not to use it.
        let outer = context.extensions().get::<Self>();
        let parent = outer.map(|outer| outer.parent(false));
        // One is kept with a run: not that of an agent in a model's place, which is made anew for
        // each of the run's steps.
        let is_kept = !outer.is_some_and(|outer| outer.is_kept_with(context));
        let run = OfRun {
            kept: is_kept.then(|| context.clone()),
            asks,
        };
        Self::with(limits, parent, run)
    }

    fn with(limits: Limits, parent: Option<Parent>, run: OfRun) -> Self {
        let state = State {
            limits,
            is_read: run.kept.is_none(),
            ..State::default()
        };
        Self(Arc::new(Node {
            parent,
            run,
            state: Mutex::new(state),
        }))
    }

    fn is_kept_with(&self, context: &Context) -> bool {
        let kept = self.0.run.kept.as_ref();
        let parent = self.0.parent.as_ref();
        kept.is_some_and(|kept| kept.run_id() == context.run_id())
            || parent.is_some_and(|parent| parent.budget.is_kept_with(context))
    }

    fn parent(&self, set_aside: bool) -> Parent {
        Parent {
            budget: self.clone(),
            set_aside,
        }
    }

    /// Sets `estimate` aside, for something that is about to be spent.
    ///
    /// What there is nothing of in the estimate is not looked at, so one who does not know how much
    /// it will be wants at least 1.
    ///
    /// # Errors
    ///
    /// What is spent, what is reserved and the estimate are more than a limit, of this budget or of
    /// one it is within. Nothing is set aside then.
    pub fn reserve(&self, estimate: Amounts) -> Result<Lease, OverBudget> {
        self.0.reserve(estimate)?;
        Ok(Lease {
            node: Arc::clone(&self.0),
            estimate,
            actual: Amounts::new(),
        })
    }

    /// Whether `estimate` could be reserved now.
    ///
    /// # Errors
    ///
    /// It could not: those of [`reserve`](Self::reserve).
    pub fn check(&self, estimate: Amounts) -> Result<(), OverBudget> {
        match self.over(estimate) {
            Some((_, over)) => Err(over),
            None => Ok(()),
        }
    }

    /// The budget into which `wanted` does not fit: this one, or one that it is within.
    pub(super) fn over(&self, wanted: Amounts) -> Option<(&Self, OverBudget)> {
        let state = *self.0.lock();
        if let Err(over) = state.check(wanted) {
            return Some((self, over));
        }
        let parent = self.0.parent.as_ref()?;
        let wanted = parent.passed_on(&state.limits, wanted);
        parent.budget.over(wanted)
    }

    /// Spends `actual`, whether it fits or not: what was spent before, or is paid already.
    pub fn charge(&self, actual: Amounts) {
        self.0.settle(Amounts::new(), actual);
    }

    /// Creates a budget with limits of its own, within this one: what is spent of it is spent of
    /// this one, too, and must fit into both. Nothing is set aside.
    #[must_use]
    pub fn within(&self, limits: Limits) -> Self {
        Self::with(limits, Some(self.parent(false)), OfRun::default())
    }

    /// Creates a budget of a part of this one, for somebody who is to be sure of it: `limits` are
    /// set aside as a whole, and what is not spent of them comes back when the last handle of the
    /// part, and the last lease, are dropped. What they don't limit is taken from this budget as it
    /// is spent.
    ///
    /// # Errors
    ///
    /// Those of [`reserve`](Self::reserve): there is not so much left.
    pub fn split(&self, limits: Limits) -> Result<Self, OverBudget> {
        self.0.reserve(limits.whole())?;
        let part = Self::with(limits, Some(self.parent(true)), OfRun::default());
        part.0.lock().held = limits.whole();
        Ok(part)
    }

    /// Adds `more` to the limits that there are. For a [part](Self::split), it is taken from the
    /// budget that it is a part of.
    ///
    /// # Errors
    ///
    /// Of that budget, there is not so much left.
    pub fn extend(&self, more: Amounts) -> Result<(), OverBudget> {
        self.0.extend(more)
    }

    /// The limits as they are now.
    pub fn limits(&self) -> Limits {
        self.0.lock().limits
    }

    /// What is spent.
    pub fn spent(&self) -> Amounts {
        self.0.lock().spent
    }

    /// What is set aside for what is not over.
    pub fn reserved(&self) -> Amounts {
        self.0.lock().reserved
    }

    /// What a run asks for when it is used up, if it does.
    pub(super) fn asks(&self) -> Option<Amounts> {
        self.0.run.asks
    }

    /// Whether what model calls spend is limited, here or in a budget around it.
    pub(super) fn limits_models(&self) -> bool {
        let all_but_tools = |limits: Limits| {
            let tool_calls = None;
            Limits {
                tool_calls,
                ..limits
            } != Limits::new()
        };
        // Not what was kept: that is read when the run's loop asks first.
        all_but_tools(self.0.state().limits)
            || self
                .0
                .parent
                .as_ref()
                .is_some_and(|parent| parent.budget.limits_models())
    }

    /// Whether it is known what was spent before a run was suspended.
    pub(super) fn check_kept(&self) -> Result<(), SlotError> {
        if let Some(context) = &self.0.run.kept {
            context.state::<Kept>()?;
        }
        match &self.0.parent {
            Some(parent) => parent.budget.check_kept(),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As it is: to look at it reads nothing of what was kept.
        let State {
            limits,
            spent,
            reserved,
            ..
        } = *self.0.state();
        f.debug_struct("Budget")
            .field("limits", &limits)
            .field("spent", &spent)
            .field("reserved", &reserved)
            .finish_non_exhaustive()
    }
}

/// What is set aside of a [`Budget`], until it is settled or dropped.
///
/// # Cancel safety
///
/// Dropping it gives back all that it holds: nothing was spent.
#[must_use = "what is reserved is given back when the lease is dropped"]
pub struct Lease {
    node: Arc<Node>,
    estimate: Amounts,
    // Spent with the drop.
    actual: Amounts,
}

impl Lease {
    /// What is set aside.
    pub const fn estimate(&self) -> Amounts {
        self.estimate
    }

    /// Spends `actual`, in place of what is set aside. It may be more, and more than is left: then
    /// the next one is refused.
    pub fn settle(mut self, actual: Amounts) {
        self.actual = actual;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.node.settle(self.estimate, self.actual);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("estimate", &self.estimate)
            .finish_non_exhaustive()
    }
}

struct Node {
    parent: Option<Parent>,
    run: OfRun,
    state: Mutex<State>,
}

struct Parent {
    budget: Budget,
    // Whether what is limited was set aside when the budget was made.
    set_aside: bool,
}

/// What a run's budget has that others have not.
#[derive(Default)]
struct OfRun {
    // The run that what is spent is kept with.
    kept: Option<Context>,
    asks: Option<Amounts>,
}

#[derive(Clone, Copy, Default)]
struct State {
    limits: Limits,
    spent: Amounts,
    reserved: Amounts,
    extended: Amounts,
    // What is set aside of the parent, and not spent.
    held: Amounts,
    // Whether what was kept is in it.
    is_read: bool,
}

impl State {
    fn check(&self, wanted: Amounts) -> Result<(), OverBudget> {
        self.limits.check(self.spent.plus(self.reserved), wanted)
    }
}

impl Parent {
    /// What of `amounts` was not set aside, and is taken from the parent as it is needed.
    fn passed_on(&self, limits: &Limits, amounts: Amounts) -> Amounts {
        match self.set_aside {
            true => amounts.minus(limits.limited(amounts)),
            false => amounts,
        }
    }
}

impl Node {
    fn reserve(&self, wanted: Amounts) -> Result<(), OverBudget> {
        // A child is always locked before its parent.
        let mut state = self.lock();
        state.check(wanted)?;
        if let Some(parent) = &self.parent {
            let wanted = parent.passed_on(&state.limits, wanted);
            parent.budget.0.reserve(wanted)?;
        }
        state.reserved = state.reserved.plus(wanted);
        Ok(())
    }

    fn settle(&self, estimate: Amounts, actual: Amounts) {
        let mut state = self.lock();
        state.reserved = state.reserved.minus(estimate);
        state.spent = state.spent.plus(actual);
        let to_parent = self.parent.as_ref().map(|parent| {
            let freed = actual.min(state.held);
            state.held = state.held.minus(freed);
            let estimate = parent.passed_on(&state.limits, estimate);
            (parent, estimate.plus(freed))
        });
        drop(state);
        self.write();
        if let Some((parent, estimate)) = to_parent {
            parent.budget.0.settle(estimate, actual);
        }
    }

    fn extend(&self, more: Amounts) -> Result<(), OverBudget> {
        let mut state = self.lock();
        let more = state.limits.limited(more);
        if let Some(parent) = self.parent.as_ref().filter(|parent| parent.set_aside) {
            parent.budget.0.reserve(more)?;
            state.held = state.held.plus(more);
        }
        state.limits = state.limits.plus(more);
        state.extended = state.extended.plus(more);
        drop(state);
        self.write();
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        // Not before somebody wants to know: the agent, which takes a suspended run up, stands
        // inside of the layer that makes the budget. If it can't be read, no call is made.
        if !state.is_read
            && let Some(context) = &self.run.kept
            && let Ok(kept) = context.state::<Kept>()
        {
            state.spent = state.spent.plus(kept.spent);
            state.extended = state.extended.plus(kept.extended);
            state.limits = state.limits.plus(kept.extended);
            state.is_read = true;
        }
        state
    }

    /// Keeps what is spent with the run.
    fn write(&self) {
        if let Some(context) = &self.run.kept {
            // It was read, so it can be written.
            let _ = context.update_state::<Kept>(|_| {
                let State {
                    spent, extended, ..
                } = *self.lock();
                Spent { spent, extended }
            });
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(parent) = self.parent.take() {
            let state = self.state.get_mut();
            let held = state.unwrap_or_else(PoisonError::into_inner).held;
            parent.budget.0.settle(held, Amounts::new());
        }
    }
}

/// Where a run's budget is kept with the run.
struct Kept;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Spent {
    spent: Amounts,
    // What somebody has added to the limits.
    extended: Amounts,
}

impl Slot for Kept {
    type Value = Spent;
    type Keep = Durable;
    const NAME: &'static str = "concentric/budget";
    const SCOPE: Scope = Scope::Run;
}
