use super::{
    Amounts, Budget, Limits, ModelBudget, RunBudget, ToolBudget, estimate::rough, gate::BudgetGate,
};
use concentric_core::{
    ChatRequest, Context, Declares, Usage,
    capability::{Around, Encloses, Expects, InLoop, Outside, Provides, Region, Requires, Within},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tower_layer::Layer;

/// The layers of a budget: [`run`](Self::run) around an agent, [`model`](Self::model) around its
/// model, [`tool`](Self::tool) around its tools.
///
/// Each run has a budget of its own. See the [module docs](super) for an example.
#[derive(Clone)]
pub struct BudgetLayer {
    limits: Limits,
    asks: Option<Amounts>,
    prices: Prices,
    // Whether a layer of this budget or of a clone stands around a model.
    charges: Arc<AtomicBool>,
}

/// What a model call is thought to need, and what it costs.
#[derive(Clone)]
pub(super) struct Prices {
    estimate: Arc<Estimate>,
    price: Arc<Price>,
}

type Estimate = dyn Fn(&ChatRequest) -> Usage + Send + Sync;
type Price = dyn Fn(&Usage) -> u64 + Send + Sync;

impl BudgetLayer {
    /// Creates the layers of a budget that lets each run spend up to `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            asks: None,
            prices: Prices {
                estimate: Arc::new(rough),
                price: Arc::new(|_| 0),
            },
            charges: Arc::default(),
        }
    }

    /// Sets what a model call costs, in micro-units of a currency; by default nothing.
    ///
    /// It is asked for estimates, too. An agent with several models has a `BudgetLayer` with a price
    /// around each: all of them find the run's budget.
    #[must_use]
    pub fn price(mut self, price: impl Fn(&Usage) -> u64 + Send + Sync + 'static) -> Self {
        self.prices.price = Arc::new(price);
        self
    }

    /// Sets what a model call is thought to need before it is made. The more exact it is, the less
    /// can be spent over a limit; if it is too high, calls are refused that would have fit.
    ///
    /// By default, it is a token of input for 4 bytes, 1,000 for an image or a document, and as many
    /// tokens of output as the request allows
    /// ([`max_output_tokens`](concentric_core::ChatOptions::max_output_tokens)), if it says so.
    #[must_use]
    pub fn estimate(
        mut self,
        estimate: impl Fn(&ChatRequest) -> Usage + Send + Sync + 'static,
    ) -> Self {
        self.prices.estimate = Arc::new(estimate);
        self
    }

    /// Has a run that is out of budget ask whether it may go on, in place of ending it.
    ///
    /// It is interrupted with a question of the reason [`BUDGET`](super::BUDGET). To approve it
    /// ([`Reply::approve`](concentric_core::Reply::approve)) adds `more` to the limits of the run;
    /// `{"approved": true, "extend": {"money": 5000}}` adds less. All else ends the run.
    #[must_use]
    pub const fn ask(mut self, more: Amounts) -> Self {
        self.asks = Some(more);
        self
    }

    /// The layer around an agent, which gives each run its budget.
    pub fn run(&self) -> RunBudgetLayer {
        RunBudgetLayer {
            layer: self.clone(),
        }
    }

    /// The layer around a model, whose calls are charged.
    pub fn model(&self) -> ModelBudgetLayer {
        ModelBudgetLayer {
            prices: self.prices.clone(),
            charges: Arc::clone(&self.charges),
        }
    }

    /// The layer around tools, whose calls are charged.
    pub const fn tool(&self) -> ToolBudgetLayer {
        ToolBudgetLayer(())
    }

    pub(super) const fn charges(&self) -> &Arc<AtomicBool> {
        &self.charges
    }

    pub(super) fn budget(&self, context: &Context) -> Budget {
        Budget::of_run(self.limits, self.asks, context)
    }

    pub(super) fn gate(&self) -> BudgetGate {
        BudgetGate::new(self.prices.clone())
    }
}

impl Prices {
    pub(super) fn estimate(&self, request: &ChatRequest) -> Usage {
        (self.estimate)(request)
    }

    /// What a model call that used `usage` has spent, but for its time.
    pub(super) fn cost(&self, usage: &Usage) -> Amounts {
        Amounts::of_usage(usage)
            .money((self.price)(usage))
            .model_calls(1)
    }
}

/// [`Layer`] that gives each run its [`Budget`]: [`BudgetLayer::run`].
#[derive(Clone, Debug)]
pub struct RunBudgetLayer {
    layer: BudgetLayer,
}

impl Declares for RunBudgetLayer {
    type Capabilities = (
        Provides<Budget>,
        Expects<Budget, ModelBudgetLayer>,
        Around<InLoop>,
    );
}

impl<S> Layer<S> for RunBudgetLayer {
    type Service = RunBudget<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RunBudget::new(inner, self.layer.clone())
    }
}

/// The region inside of a [`ModelBudgetLayer`], where a model call is charged already.
#[derive(Debug)]
pub enum ChargedCall {}

impl Region for ChargedCall {}

/// [`Layer`] that charges model calls: [`BudgetLayer::model`].
#[derive(Clone, Debug)]
pub struct ModelBudgetLayer {
    prices: Prices,
    charges: Arc<AtomicBool>,
}

impl Declares for ModelBudgetLayer {
    type Capabilities = (
        Requires<Budget>,
        Encloses<ChargedCall>,
        Outside<ChargedCall>,
        Within<InLoop>,
    );
}

impl<S> Layer<S> for ModelBudgetLayer {
    type Service = ModelBudget<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.charges.store(true, Ordering::Relaxed);
        ModelBudget::new(inner, self.prices.clone())
    }
}

/// [`Layer`] that charges tool calls: [`BudgetLayer::tool`].
#[derive(Clone, Debug)]
pub struct ToolBudgetLayer(());

impl Declares for ToolBudgetLayer {
    type Capabilities = Requires<Budget>;
}

impl<S> Layer<S> for ToolBudgetLayer {
    type Service = ToolBudget<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ToolBudget::new(inner)
    }
}

impl fmt::Debug for BudgetLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetLayer")
            .field("limits", &self.limits)
            .field("asks", &self.asks)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prices").finish_non_exhaustive()
    }
}
