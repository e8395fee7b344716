//! The stack of a process: the layers of the product around a model that decides by the transcript, and tools of
//! four kinds.

use super::{
    history::What,
    limits::{LimitStore, is_of_limits},
    outside::{self, Admission, Class, Effect, Effects, Provider, Providers},
    store::Connection,
    time::{ProcessId, Time},
};
use crate::dice::Dice;
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, Environment, Usage, store::RunClaim,
};
use concentric_layers::{
    BudgetPlugin, CircuitBreakerLayer, ConversationLayer, DetachLayer, FallbackLayer,
    InFlightLimitLayer, OnOutage, RateLimitLayer, RetryModel, Shared, SuspendLayer, budget::Limits,
    rate_limit::Quota,
};
use concentric_tools::{Approval, Tool, ToolError, Toolset, tool_with_context};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};
use tower::{
    Layer, ServiceBuilder,
    retry::{RetryLayer, budget::Budget},
};

/// The settings of all processes of a world.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) lease: u64,
    pub(super) sweep: u64,
    /// Whether runs continue when their clients disconnect.
    pub(super) detaches: bool,
    /// The number of model calls of a process that may begin in a period, for each provider.
    pub(super) quota: u64,
    pub(super) period: u64,
    /// The number of model calls of a process at the same time, for each provider.
    pub(super) in_flight: usize,
    /// The number of model calls of a run.
    pub(super) calls: u64,
    pub(super) attempts: u32,
    /// The failures after which a circuit opens, and for how long.
    pub(super) failures: u32,
    pub(super) open_for: u64,
    /// Whether some runs end each process that resumes them.
    pub(super) has_poison: bool,
    /// Whether the quota and the concurrent calls are those of all processes, and how they are shared.
    pub(super) shared: Option<SharedLimits>,
}

/// How processes share their limits.
#[derive(Clone, Debug)]
pub(super) struct SharedLimits {
    pub(super) batch: u64,
    pub(super) patience: u64,
    /// The lease of permits.
    pub(super) lease: u64,
    pub(super) on_outage: OnOutage,
    /// What each tenant may spend, of which a call takes this estimate at first.
    pub(super) money: u64,
    /// What a process may spend while the store does not answer.
    pub(super) in_outage: u64,
    /// The lease of a reservation.
    pub(super) charged_after: u64,
}

/// The prices of a model call: by estimate, and of an answer.
pub(super) const ESTIMATE: u64 = 50;
pub(super) const PRICE: u64 = 20;

impl Settings {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let mut settings = Self {
            lease: dice.range(2, 8) * 1_000,
            sweep: dice.range(1, 4) * 500,
            detaches: dice.one_in(2),
            quota: dice.range(3, 12),
            period: dice.range(1, 4) * 1_000,
            in_flight: usize::try_from(dice.range(1, 4)).unwrap_or(1),
            calls: dice.range(5, 20),
            attempts: 3,
            failures: u32::try_from(dice.range(3, 8)).unwrap_or(3),
            open_for: dice.range(1, 5) * 1_000,
            has_poison: dice.one_in(8),
            shared: None,
        };
        if dice.one_in(2) {
            settings.quota *= 2;
            settings.in_flight *= 2;
            settings.shared = Some(SharedLimits::new(dice));
        }
        settings
    }
}

impl SharedLimits {
    fn new(dice: &mut Dice) -> Self {
        Self {
            batch: match dice.below(4) {
                0 => 0,
                1 => 50,
                2 => 200,
                _ => 500,
            },
            patience: dice.range(1, 10) * 100,
            lease: dice.range(1, 8) * 1_000,
            on_outage: match dice.below(4) {
                0 => OnOutage::Refuse,
                1 => OnOutage::LocalShare(0.5),
                _ => OnOutage::LocalShare(0.25),
            },
            money: match dice.below(3) {
                0 => dice.range(4, 30) * ESTIMATE,
                _ => 1_000_000,
            },
            in_outage: match dice.below(2) {
                0 => 0,
                _ => dice.range(1, 20) * ESTIMATE,
            },
            charged_after: dice.range(2, 40) * 1_000,
        }
    }
}

// ---- scripts ----

/// What a run does, which is the text of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The name of the request, which no other one has.
    pub(crate) tag: String,
    pub(crate) steps: usize,
    /// Selects the calls of each step.
    pub(crate) variant: u64,
}

impl Script {
    pub(crate) fn text(&self) -> String {
        format!("do {} {} {}", self.tag, self.steps, self.variant)
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("do ")?.split(' ');
        Some(Self {
            tag: words.next()?.to_owned(),
            steps: words.next()?.parse().ok()?,
            variant: words.next()?.parse().ok()?,
        })
    }

    /// The calls of a step: tools, and the ids of their calls.
    pub(crate) fn calls(&self, step: usize) -> Vec<(&'static str, String)> {
        const ROUNDS: [&[&str]; 8] = [
            &["look", "pay"],
            &["mail", "look"],
            &["wire"],
            &["pay", "mail"],
            &["pay"],
            &["wire", "pay"],
            &["look"],
            &["mail"],
        ];
        let round = Dice::new(self.variant)
            .fork(step as u64)
            .below(ROUNDS.len() as u64);
        let tools = match usize::try_from(round).ok().and_then(|at| ROUNDS.get(at)) {
            Some(tools) if step < self.steps => *tools,
            _ => &[],
        };
        let id = |tool: &str| format!("{}.{step}.{tool}", self.tag);
        tools.iter().map(|tool| (*tool, id(tool))).collect()
    }

    /// The text of the answer.
    pub(crate) fn answer(&self) -> String {
        format!("{} is done", self.tag)
    }
}

pub(crate) fn class_of(tool: &str) -> Class {
    match tool {
        "look" => Class::ReadOnly,
        "pay" => Class::Keyed,
        _ => Class::AtMostOnce,
    }
}

// ---- tools ----

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    what: String,
}

#[derive(Clone)]
struct Work {
    time: Time,
    process: ProcessId,
    effects: Effects,
}

impl Work {
    /// Does what a tool of this class does.
    async fn act(
        &self,
        class: Class,
        call: String,
        context: &Context,
    ) -> Result<String, ToolError> {
        let key = context.idempotency_key().unwrap_or_default().to_string();
        let claim = RunClaim::of(context);
        let run = claim.as_ref().map(|claim| claim.key.run.to_string());
        let effect = Effect {
            call: call.clone(),
            class,
            key,
            run: run.unwrap_or_default(),
            fence: claim.map_or(0, |claim| claim.fence),
        };
        let Effect {
            key, run, fence, ..
        } = effect.clone();
        let what = What::Started {
            call: call.clone(),
            class,
            key,
            run,
            fence,
        };
        self.time.note(Some(self.process), what);
        let wait = self.time.dice(|dice| dice.below(60));
        let clock = context.environment().clone();
        clock.clock().sleep(Duration::from_millis(wait)).await;
        if class != Class::ReadOnly && !self.effects.request(self.process, effect).await {
            return Err(ToolError::new(format!("{call}: not done, it was given up")));
        }
        Ok(format!("{call}: done"))
    }

    fn tool(&self, name: &'static str) -> Tool {
        let (work, class) = (self.clone(), class_of(name));
        let act = move |Arguments { what }, context: Context| {
            let work = work.clone();
            async move { work.act(class, what, &context).await }
        };
        let tool = tool_with_context(name, "Does it.", act);
        match class {
            Class::ReadOnly => tool.read_only(),
            Class::Keyed => tool.keyed(),
            Class::AtMostOnce => tool,
        }
    }
}

// ---- the model and its layers ----

/// A budget of retries without a clock: one for every five successes, and up to ten in advance.
pub(crate) struct Retries(AtomicI64);

impl Default for Retries {
    fn default() -> Self {
        Self(AtomicI64::new(1_000))
    }
}

impl Budget for Retries {
    fn deposit(&self) {
        let _ = self
            .0
            .fetch_update(Relaxed, Relaxed, |left| Some((left + 20).min(1_000)));
    }

    fn withdraw(&self) -> bool {
        let withdrawn = |left: i64| (left >= 100).then_some(left - 100);
        self.0.fetch_update(Relaxed, Relaxed, withdrawn).is_ok()
    }
}

/// The budget of each run, and those of its tenant if processes share limits.
fn budget(limits: &LimitStore, settings: &Settings) -> BudgetPlugin {
    let budget = BudgetPlugin::new(Limits::new().model_calls(settings.calls));
    let Some(shared) = &settings.shared else {
        return budget;
    };
    let budgets = limits.connection.database.budgets.clone();
    let budget = budget
        .estimate(|_| Usage::new(3, 2))
        .price(|usage| {
            10 * (usage.input_tokens().unwrap_or(0) + usage.output_tokens().unwrap_or(0))
        })
        .shared(Arc::new(limits.clone()), move |_| budgets.clone())
        .lease(Duration::from_millis(shared.charged_after))
        .environment(limits.environment.clone());
    match shared.in_outage {
        0 => budget,
        money => budget.allow_in_outage(Limits::new().money(money)),
    }
}

/// What a process consists of, apart from its runs.
pub(super) struct Stack {
    pub(super) suspend: SuspendLayer<Connection>,
    pub(super) agent: BoxModel,
}

impl Stack {
    pub(super) fn new(
        connection: &Connection,
        environment: &Environment,
        settings: &Settings,
        effects: &Effects,
        providers: &Providers,
    ) -> Self {
        let (time, process) = (connection.database.time.clone(), connection.process);
        let work = Work {
            time: time.clone(),
            process,
            effects: effects.clone(),
        };
        let tools = ["look", "pay", "mail", "wire"]
            .into_iter()
            .map(|name| work.tool(name))
            .collect::<Toolset>()
            .gate(Approval::for_tools(["wire"]))
            .ledger(connection.clone());
        let limits = LimitStore {
            connection: connection.clone(),
            environment: environment.clone(),
        };
        let budget = budget(&limits, settings);
        let model = |provider| {
            let (admissions, admitted) = (Arc::new(AtomicI64::new(0)), time.clone());
            let admit = move |mut request: ChatRequest| {
                let id = admissions.fetch_add(1, Relaxed).unsigned_abs();
                let mono = outside::mono(request.context.environment());
                let what = What::Admitted { provider, id, mono };
                admitted.note(Some(process), what);
                request.context.extensions_mut().insert(Admission(id));
                request
            };
            let noting = |what: fn(Provider, u64, u64) -> What| {
                let time = time.clone();
                move |request: ChatRequest| {
                    let id = request.context.extensions().get::<Admission>();
                    let id = id.map_or(0, |Admission(id)| *id);
                    let mono = outside::mono(request.context.environment());
                    time.note(Some(process), what(provider, id, mono));
                    request
                }
            };
            let permitted = noting(|provider, id, _| What::Permitted { provider, id });
            let passed = noting(|provider, id, mono| What::Passed { provider, id, mono });
            let quota = Quota::per(Duration::from_millis(settings.period)).requests(settings.quota);
            let mut permits = InFlightLimitLayer::new(settings.in_flight);
            let mut rates = RateLimitLayer::new(quota).wait(Duration::from_secs(5));
            if let Some(shared) = &settings.shared {
                let shared = Shared::new(Arc::new(limits.clone()), format!("{provider:?}"))
                    .batch(Duration::from_millis(shared.batch))
                    .patience(Duration::from_millis(shared.patience))
                    .lease(Duration::from_millis(shared.lease))
                    .on_outage(shared.on_outage)
                    .environment(environment.clone());
                permits = permits.shared(shared.clone());
                rates = rates.shared(shared);
            }
            let retry = RetryModel::new(settings.attempts)
                .backoff(Duration::from_millis(100), Duration::from_secs(2))
                .max_retry_after(Duration::from_secs(3))
                .budget(Retries::default());
            let breaker = CircuitBreakerLayer::new(format!("{provider:?}"))
                .consecutive(settings.failures)
                .open_for(Duration::from_millis(settings.open_for))
                // A failure of the store, and a call that a limit refuses, are none of the provider.
                .counts(|error| is_of_limits(error).then_some(false))
                .probes(1);
            let model = ServiceBuilder::new()
                .layer(RetryLayer::new(retry))
                .layer(breaker)
                .map_request(admit)
                .layer(permits)
                .map_request(permitted)
                .layer(rates)
                .map_request(passed)
                .layer(budget.model())
                .service(outside::model(
                    time.clone(),
                    process,
                    provider,
                    providers.clone(),
                ));
            BoxModel::new(model)
        };
        let fallback = FallbackLayer::new("first")
            .or("second", model(Provider::Second))
            .time_to_first(Duration::from_secs(8));
        let suspend = SuspendLayer::new(Arc::new(connection.clone()))
            .lease(Duration::from_millis(settings.lease));
        let steps = time.clone();
        let agent = ServiceBuilder::new()
            .layer(ConversationLayer::new(connection.clone()).required())
            .layer(budget.run())
            .layer(AgentLayer::new(tools))
            .map_request(move |request: ChatRequest| {
                if let Some((script, _)) = outside::place(&request) {
                    steps.note(Some(process), What::Step { tag: script.tag });
                }
                request
            })
            .layer(fallback)
            .service(model(Provider::First));
        let agent = BoxModel::new(suspend.layer(agent));
        let agent = match settings.detaches {
            true => BoxModel::new(DetachLayer::new().layer(agent)),
            false => agent,
        };
        Self { suspend, agent }
    }
}
