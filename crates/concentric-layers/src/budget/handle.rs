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

/// The limits and the spending of a run, or of several runs. Clones share the same budget.
///
/// An estimate is [reserved](Self::reserve) before a call, in all dimensions or in none, and
/// [settled](Lease::settle) with the actual amounts. A budget can belong to a run
/// ([`BudgetPlugin::run`](super::BudgetPlugin::run)), or to several runs, for example to those of a
/// conversation, a user or a tenant.
///
/// ```
/// use concentric_layers::budget::{Amounts, Budget, Dimension, Limits};
///
/// let budget = Budget::new(Limits::new().money(1_000).model_calls(3));
/// let call = Amounts::new().money(600).model_calls(1);
///
/// let first = budget.reserve(call)?;
/// // A second reservation does not fit, although the first call is not settled yet.
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
    /// Creates a budget without spending.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, None, RunPart::default())
    }

    /// Creates the budget of a run, within the budget that `context` provides, if any.
    pub(super) fn of_run(limits: Limits, asks: Option<Amounts>, context: &Context) -> Self {
        // Read from the extensions, because `capability` would record a use.
        let outer = context.extensions().get::<Self>();
        let parent = outer.map(|outer| outer.parent(false));
        // A run stores one budget. That of an agent that is used as a model is excluded, because it
        // is created again for each step of the outer run.
        let is_kept = !outer.is_some_and(|outer| outer.is_kept_with(context));
        let run = RunPart {
            kept: is_kept.then(|| context.clone()),
            asks,
        };
        Self::with(limits, parent, run)
    }

    fn with(limits: Limits, parent: Option<Parent>, run: RunPart) -> Self {
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

    /// Reserves `estimate` before a call.
    ///
    /// Dimensions that are zero in the estimate are not checked. If an amount is unknown, use at
    /// least 1.
    ///
    /// # Errors
    ///
    /// Spending, reservations and the estimate together exceed a limit of this budget or of an
    /// outer budget. Nothing is reserved in that case.
    pub fn reserve(&self, estimate: Amounts) -> Result<Lease, OverBudget> {
        self.0.reserve(estimate)?;
        Ok(Lease {
            node: Arc::clone(&self.0),
            estimate,
            actual: Amounts::new(),
        })
    }

    /// Checks whether `estimate` could be reserved now.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve).
    pub fn check(&self, estimate: Amounts) -> Result<(), OverBudget> {
        match self.over(estimate) {
            Some((_, over)) => Err(over),
            None => Ok(()),
        }
    }

    /// Returns the budget whose limit `wanted` exceeds: this one, or an outer one.
    pub(super) fn over(&self, wanted: Amounts) -> Option<(&Self, OverBudget)> {
        let state = *self.0.lock();
        if let Err(over) = state.check(wanted) {
            return Some((self, over));
        }
        let parent = self.0.parent.as_ref()?;
        let wanted = parent.passed_on(&state.limits, wanted);
        parent.budget.over(wanted)
    }

    /// Adds `actual` to the spending without a check, for example for earlier or prepaid spending.
    pub fn charge(&self, actual: Amounts) {
        self.0.settle(Amounts::new(), actual);
    }

    /// Creates an inner budget with additional limits.
    ///
    /// Its spending is also charged to this budget and must fit into both. Nothing is reserved.
    #[must_use]
    pub fn within(&self, limits: Limits) -> Self {
        Self::with(limits, Some(self.parent(false)), RunPart::default())
    }

    /// Reserves a part of this budget and returns it as a separate budget.
    ///
    /// `limits` are reserved as a whole. The unspent rest is returned when the last handle and the
    /// last lease of the part are dropped. Dimensions without a limit in `limits` are charged to
    /// this budget as they are spent.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve).
    pub fn split(&self, limits: Limits) -> Result<Self, OverBudget> {
        self.0.reserve(limits.whole())?;
        let part = Self::with(limits, Some(self.parent(true)), RunPart::default());
        part.0.lock().held = limits.whole();
        Ok(part)
    }

    /// Adds `more` to the limits of this budget. Dimensions without a limit are ignored.
    ///
    /// For a [part](Self::split), `more` is reserved from the budget that it was split from.
    ///
    /// # Errors
    ///
    /// The budget that the part was split from has less left than `more`.
    pub fn extend(&self, more: Amounts) -> Result<(), OverBudget> {
        self.0.extend(more)
    }

    /// Returns the current limits.
    pub fn limits(&self) -> Limits {
        self.0.lock().limits
    }

    /// Returns the spending.
    pub fn spent(&self) -> Amounts {
        self.0.lock().spent
    }

    /// Returns the reservations of calls in progress and of parts.
    pub fn reserved(&self) -> Amounts {
        self.0.lock().reserved
    }

    /// Returns the extension that the run requests when the budget is used up, if configured.
    pub(super) fn asks(&self) -> Option<Amounts> {
        self.0.run.asks
    }

    /// Returns whether this budget or an outer one limits the spending of model calls.
    pub(super) fn limits_models(&self) -> bool {
        let all_but_tools = |mut limits: Limits| {
            limits.tool_calls = None;
            limits != Limits::new()
        };
        // Does not read the stored spending, which is restored when the loop of the run first
        // accesses the budget.
        all_but_tools(self.0.state().limits)
            || self
                .0
                .parent
                .as_ref()
                .is_some_and(|parent| parent.budget.limits_models())
    }

    /// Returns whether this budget or an outer one limits what depends on the length of an answer.
    pub(super) fn limits_output(&self) -> bool {
        let Limits {
            money,
            output_tokens,
            total_tokens,
            ..
        } = self.0.state().limits;
        let outer = self.0.parent.as_ref();
        money.or(output_tokens).or(total_tokens).is_some()
            || outer.is_some_and(|outer| outer.budget.limits_output())
    }

    /// Checks that the spending from before a suspension can be read.
    pub(super) fn check_kept(&self) -> Result<(), SlotError> {
        if let Some(context) = &self.0.run.kept
            && !self.0.state().is_read
        {
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
        // Does not restore the stored spending.
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

/// A reservation of a [`Budget`], until it is settled or dropped.
///
/// # Cancel safety
///
/// Dropping a lease releases the reservation and records no spending.
#[must_use = "the reservation is released when the lease is dropped"]
pub struct Lease {
    node: Arc<Node>,
    estimate: Amounts,
    // Charged on drop.
    actual: Amounts,
}

impl Lease {
    /// Returns the reserved amounts.
    pub const fn estimate(&self) -> Amounts {
        self.estimate
    }

    /// Releases the reservation and adds `actual` to the spending.
    ///
    /// `actual` may exceed the reservation and the limits; the next reservation then fails.
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
    run: RunPart,
    state: Mutex<State>,
}

struct Parent {
    budget: Budget,
    // Whether the limits were reserved from the parent when the budget was created.
    set_aside: bool,
}

/// The data that only the budget of a run has.
#[derive(Default)]
struct RunPart {
    // The run whose state stores the spending.
    kept: Option<Context>,
    asks: Option<Amounts>,
}

#[derive(Clone, Copy, Default)]
struct State {
    limits: Limits,
    spent: Amounts,
    reserved: Amounts,
    extended: Amounts,
    // The amount that is reserved from the parent and not spent.
    held: Amounts,
    // Whether the stored spending has been restored.
    is_read: bool,
}

impl State {
    fn check(&self, wanted: Amounts) -> Result<(), OverBudget> {
        self.limits.check(self.spent.plus(self.reserved), wanted)
    }
}

impl Parent {
    /// Returns the part of `amounts` that is not reserved yet and is charged to the parent.
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
        // Restored on first access, because the agent, which resumes a suspended run, is inside the
        // layer that creates the budget. If the state cannot be read, `check_kept` fails before
        // each call.
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

    /// Stores the spending in the run's state.
    fn write(&self) {
        if let Some(context) = &self.run.kept {
            // The state was readable, so it can be written.
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

/// The slot that stores the spending of a run.
struct Kept;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Spent {
    spent: Amounts,
    // The extensions of the limits.
    extended: Amounts,
}

impl Slot for Kept {
    type Value = Spent;
    type Keep = Durable;
    const NAME: &'static str = "concentric/budget";
    const SCOPE: Scope = Scope::Run;
}
