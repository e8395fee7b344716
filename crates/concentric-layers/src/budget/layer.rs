use super::{
    Amounts, Budget, Limits, ModelBudget, RunBudget, ToolBudget, gate::BudgetGate,
    shared::SharedBudgets,
};
use crate::tokens::Estimator;
use concentric_core::{
    ChatRequest, Context, Declares, Transcript, Usage,
    agent::{Installer, Plugin},
    capability::{Around, Encloses, Expects, InLoop, Outside, Provides, Region, Requires, Within},
    context::Environment,
    store::{BudgetStore, SharedBudget},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tower_layer::Layer;

/// [`Plugin`] that limits each run: it installs [`run`](Self::run) around the agent,
/// [`model`](Self::model) around its model and [`tool`](Self::tool) around its tools.
///
/// Each run has a separate budget. See the [module docs](super) for an example.
#[derive(Clone)]
pub struct BudgetPlugin {
    limits: Limits,
    asks: Option<Amounts>,
    prices: Prices,
    // Whether a layer of this budget or of a clone wraps a model.
    charges: Arc<AtomicBool>,
}

/// The estimate and the price of model calls.
#[derive(Clone)]
pub(super) struct Prices {
    estimate: Estimate,
    price: Arc<Price>,
    pub(super) shared: SharedBudgets,
}

#[derive(Clone)]
enum Estimate {
    Default(Estimator),
    Custom(Arc<dyn Fn(&ChatRequest) -> Usage + Send + Sync>),
}

type Price = dyn Fn(&Usage) -> u64 + Send + Sync;

impl BudgetPlugin {
    /// Creates the layers of a budget that limits each run to `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            asks: None,
            prices: Prices {
                estimate: Estimate::Default(Estimator::new()),
                price: Arc::new(|_| 0),
                shared: SharedBudgets::default(),
            },
            charges: Arc::default(),
        }
    }

    /// Sets the price of a model call, in micro-units of a currency; the default is zero.
    ///
    /// The function is also applied to estimates. For an agent with several models, wrap each model
    /// with a `BudgetPlugin` that has its price: all of them charge the run's budget.
    #[must_use]
    pub fn price(mut self, price: impl Fn(&Usage) -> u64 + Send + Sync + 'static) -> Self {
        self.prices.price = Arc::new(price);
        self
    }

    /// Sets the estimate of a model call. An estimate that is too low allows spending over a limit;
    /// one that is too high refuses calls that would have fit.
    ///
    /// The default is that of an [`Estimator`](crate::tokens::Estimator) for the input, and
    /// [`max_output_tokens`](concentric_core::ChatOptions::max_output_tokens) output tokens, if the
    /// request sets it.
    #[must_use]
    pub fn estimate(
        mut self,
        estimate: impl Fn(&ChatRequest) -> Usage + Send + Sync + 'static,
    ) -> Self {
        self.prices.estimate = Estimate::Custom(Arc::new(estimate));
        self
    }

    /// Also charges model calls to budgets that processes share, which `of` returns, the outermost first, such as
    /// those of a tenant and of its key. See [the module docs](super#several-processes).
    #[must_use]
    pub fn shared(
        mut self,
        store: Arc<dyn BudgetStore>,
        of: impl Fn(&Context) -> Vec<SharedBudget> + Send + Sync + 'static,
    ) -> Self {
        self.prices.shared.source = Some((store, Arc::new(of)));
        self
    }

    /// Sets what this process may spend of the [shared](Self::shared) budgets while their store does not answer; by
    /// default nothing: model calls then fail with the error of the store.
    #[must_use]
    pub fn allow_in_outage(mut self, limits: Limits) -> Self {
        self.prices.shared.in_outage = Some(Budget::new(limits));
        self
    }

    /// Sets the time after which a [shared](Self::shared) reservation of a process that has died is charged in full; 10
    /// minutes by default. A call that takes longer is charged in full meanwhile.
    #[must_use]
    pub const fn lease(mut self, time: Duration) -> Self {
        self.prices.shared.lease = time;
        self
    }

    /// Sets the source of the random ids of [shared](Self::shared) reservations, and the clock of their settlements; the
    /// default is that of the system.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.prices.shared.environment = environment;
        self
    }

    /// Interrupts a run that is out of budget, in place of halting it.
    ///
    /// The interrupt has the reason [`BUDGET`](super::BUDGET). Approving it
    /// ([`Reply::approve`](concentric_core::Reply::approve)) adds `more` to the limits of the run.
    /// The payload `{"approved": true, "extend": {"money": 5000}}` adds smaller amounts. Any other
    /// reply halts the run.
    #[must_use]
    pub const fn ask(mut self, more: Amounts) -> Self {
        self.asks = Some(more);
        self
    }

    /// Returns the layer for an agent, which creates the budget of each run.
    pub fn run(&self) -> RunBudgetLayer {
        RunBudgetLayer {
            layer: self.clone(),
        }
    }

    /// Returns the layer for a model, which charges its calls.
    pub fn model(&self) -> ModelBudgetLayer {
        ModelBudgetLayer {
            prices: self.prices.clone(),
            charges: Arc::clone(&self.charges),
        }
    }

    /// Returns the layer for tools, which charges their calls.
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

impl Plugin for BudgetPlugin {
    fn install(self, at: &mut Installer<'_>) {
        at.run_layer(self.run());
        at.model_layer(self.model());
        at.tool_layer(self.tool());
    }
}

impl Prices {
    pub(super) fn estimate(&self, request: &ChatRequest) -> Usage {
        match &self.estimate {
            Estimate::Default(estimator) => estimator.call(request),
            Estimate::Custom(estimate) => estimate(request),
        }
    }

    /// Returns the estimate of a model call with nothing but the conversation of a run.
    pub(super) fn estimate_turns(&self, transcript: &Transcript) -> Usage {
        match &self.estimate {
            Estimate::Default(_) => Estimator::turns(transcript),
            Estimate::Custom(estimate) => estimate(&ChatRequest::new(transcript.clone())),
        }
    }

    /// Returns the amounts of a model call with this `usage`, except its time.
    pub(super) fn cost(&self, usage: &Usage) -> Amounts {
        Amounts::of_usage(usage)
            .money((self.price)(usage))
            .model_calls(1)
    }
}

/// [`Layer`] that creates the [`Budget`] of each run. See [`BudgetPlugin::run`].
#[derive(Clone, Debug)]
pub struct RunBudgetLayer {
    layer: BudgetPlugin,
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

/// [`Layer`] that charges model calls. See [`BudgetPlugin::model`].
#[derive(Clone, Debug)]
pub struct ModelBudgetLayer {
    prices: Prices,
    charges: Arc<AtomicBool>,
}

/// The region inside the layer, where a model call is already charged.
impl Region for ModelBudgetLayer {}

impl Declares for ModelBudgetLayer {
    type Capabilities = (
        Requires<Budget>,
        Encloses<Self>,
        Outside<Self>,
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

/// [`Layer`] that charges tool calls. See [`BudgetPlugin::tool`].
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

impl fmt::Debug for BudgetPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetPlugin")
            .field("limits", &self.limits)
            .field("asks", &self.asks)
            .finish_non_exhaustive()
    }
}

concentric_core::opaque_debug!(Prices);
