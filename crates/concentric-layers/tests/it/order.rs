//! The order of [`concentric_layers::order`]: each layer with its neighbours, the whole stack, and layers at the
//! wrong place.

use concentric_core::{
    AgentLayer, Answer, BoxError, BoxModel, BoxTool, CancelReason, ChatRequest, Context, Error,
    ErrorKind, Event, Outcome, Reply, ThreadId, ToolCall, ToolService,
    service::SharedModel,
    store::{Memories, Tenant, ThreadStore},
};
use concentric_layers::{
    BudgetPlugin, CircuitBreakerLayer, ClearToolResultsLayer, CommitLayer, CompactionLayer,
    ConversationLayer, DetachLayer, DynamicMemoryLayer, Emit, FallbackLayer, GuardLayer,
    GuardrailLayer, InFlightLimitLayer, LogLayer, Otel, RateLimitLayer, RequestDefaultsLayer,
    ResponseCacheLayer, RetryModel, StaticMemoryLayer, Steering, SuspendLayer, ToolCacheLayer,
    Transform, TransformLayer, TrimLayer,
    budget::{Budget, Limits},
    guard::{Parts, Rules, pii},
    guardrail::{Assessment, Input, Output, Subject},
    rate_limit::Quota,
    response_cache::CacheScope,
    session::{MakeSession, SessionTarget},
    stop::{ErrorLimit, Judgement, LoopDetector, OutputConstraint},
    tool_cache,
};
use concentric_test::{
    Gate, MemoryStore, ScriptedModel, Strict, check_layer, check_tool_layer, layer_check,
};
use concentric_tools::{Approval, NoArguments, RetryTool, Toolset, tool};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{
    Layer, ServiceExt, buffer::Buffer, layer::layer_fn, limit::ConcurrencyLimit, retry::RetryLayer,
    service_fn, timeout::TimeoutLayer, util::MapRequestLayer,
};

type Around<S = BoxModel> = Box<dyn Fn(S) -> S>;

/// A layer around a model that it must poll ready before each call.
fn around<L>(layer: L) -> Around
where
    L: Layer<Strict<BoxModel>, Service: SharedModel> + 'static,
{
    Box::new(move |inner| BoxModel::new(layer.layer(Strict::new(inner))))
}

/// A layer around a tool that it must poll ready before each call.
fn around_tool<L>(layer: L) -> Around<BoxTool>
where
    L: Layer<
            Strict<BoxTool>,
            Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
        > + 'static,
{
    Box::new(move |inner| BoxTool::new(layer.layer(Strict::new(inner))))
}

fn all<S>(layers: &[Around<S>], inner: S) -> S {
    layers.iter().rev().fold(inner, |inner, layer| layer(inner))
}

struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// The layers of one application.
#[derive(Clone)]
struct Layers {
    store: MemoryStore,
    budget: BudgetPlugin,
    otel: Otel,
    log: LogLayer,
    detach: DetachLayer,
    paid: Arc<AtomicUsize>,
    looked: Arc<AtomicUsize>,
}

impl Layers {
    fn new(limits: Limits) -> Self {
        Self {
            store: MemoryStore::new(),
            budget: BudgetPlugin::new(limits),
            otel: Otel::new(),
            log: LogLayer::standard(),
            detach: DetachLayer::new(),
            paid: Arc::default(),
            looked: Arc::default(),
        }
    }

    fn guard() -> GuardLayer {
        GuardLayer::new(Rules::new([pii::email()]).unwrap())
            .input(Parts::USER | Parts::RESULTS)
            .output(Parts::TEXT)
    }

    fn guardrail(name: &'static str) -> GuardrailLayer {
        GuardrailLayer::new(
            name,
            service_fn(async |_: Subject| Ok::<_, BoxError>(Assessment::Pass)),
        )
    }

    fn around_the_agent(&self) -> Vec<Around> {
        let owner = |context: &Context| Some(Tenant::of(context).0);
        let style = StaticMemoryLayer::new().document("style", "Be brief.");
        vec![
            around(self.detach.clone()),
            around(self.log.clone()),
            around(Self::guard()),
            around(Self::guardrail("topic").input(Input::Parallel)),
            around(SuspendLayer::new(Arc::new(self.store.clone()))),
            around(self.otel.run()),
            around(ConversationLayer::new(self.store.clone())),
            around(self.budget.run()),
            around(RequestDefaultsLayer::new().system("You work for a shop.")),
            around(style.unwrap()),
            around(DynamicMemoryLayer::new(self.store.clone(), owner)),
        ]
    }

    fn agent(&self) -> AgentLayer<Toolset> {
        let (paid, looked) = (Arc::clone(&self.paid), Arc::clone(&self.looked));
        let counts = |name: &str, count: Arc<AtomicUsize>| {
            tool(name, "Counts.", move |NoArguments {}| {
                let count = count.fetch_add(1, Ordering::SeqCst) + 1;
                async move { count.to_string() }
            })
        };
        let tools = Toolset::new()
            .tool(counts("look", looked).read_only())
            .tool(counts("pay", paid))
            .gate(Approval::for_tools("pay"))
            .hooks(self.otel.tool())
            .hooks(self.log.clone())
            .layer(ToolCacheLayer::new(tool_cache::CacheScope::Run))
            .layer(RetryLayer::new(RetryTool::new(2)))
            .layer(TimeoutLayer::new(Duration::from_secs(5)))
            .layer(self.budget.tool());
        let accepts = async |_, _| Ok(Judgement::Accept);
        AgentLayer::new(tools)
            .gate(Steering::new(4).gate())
            .gate(LoopDetector::new(3))
            .gate(ErrorLimit::new())
            .gate(OutputConstraint::new("polite", accepts))
    }

    fn around_the_model(&self) -> Vec<Around> {
        let summarizer = ScriptedModel::new().text("A summary.").repeat();
        let other = ScriptedModel::new().text("Another model.").repeat();
        let quota = Quota::per(Duration::from_secs(1)).requests(1_000_000);
        vec![
            around(CompactionLayer::new(BoxModel::new(summarizer), 200_000)),
            around(ClearToolResultsLayer::new()),
            around(TrimLayer::turns(1_000)),
            around(TransformLayer::new(|_: &ChatRequest| Same)),
            around(Self::guard()),
            around(Self::guardrail("tone").output(Output::windows(40, 10))),
            around(ResponseCacheLayer::new(CacheScope::Thread)),
            around(FallbackLayer::new("model").or("other", other)),
            around(RetryLayer::new(RetryModel::new(3))),
            around(CircuitBreakerLayer::new("model")),
            around(CommitLayer::first_event()),
            around(self.otel.model()),
            around(self.log.clone()),
            around(RateLimitLayer::new(quota)),
            around(InFlightLimitLayer::new(64)),
            around(self.budget.model()),
            around(TimeoutLayer::new(Duration::from_secs(5))),
        ]
    }

    fn around_tools(&self) -> Vec<Around<BoxTool>> {
        vec![
            around_tool(self.otel.tool()),
            around_tool(self.log.clone()),
            around_tool(ToolCacheLayer::new(tool_cache::CacheScope::Run)),
            around_tool(RetryLayer::new(RetryTool::new(2))),
            around_tool(TimeoutLayer::new(Duration::from_secs(5))),
            around_tool(self.budget.tool()),
        ]
    }

    fn whole(&self, model: BoxModel) -> BoxModel {
        let model = all(&self.around_the_model(), model);
        let agent = around(self.agent())(model);
        all(&self.around_the_agent(), agent)
    }
}

/// The context of a run of the user `ann`.
fn context(thread: &str) -> Context {
    let mut context = Context::builder().thread_id(ThreadId::new(thread)).build();
    context.extensions_mut().insert(Tenant("ann".into()));
    context
}

/// A layer in whose runs each has a conversation of its own.
fn checked<F>(stack: F) -> impl Layer<Strict<ScriptedModel>, Service = BoxModel>
where
    F: Fn(BoxModel) -> BoxModel,
{
    let threads = Arc::new(AtomicUsize::new(0));
    layer_fn(move |model: Strict<ScriptedModel>| {
        let threads = Arc::clone(&threads);
        let numbered = MapRequestLayer::new(move |mut request: ChatRequest| {
            let number = threads.fetch_add(1, Ordering::SeqCst);
            request.context = context(&format!("t{number}"));
            request
        });
        BoxModel::new(numbered.layer(stack(BoxModel::new(model))))
    })
}

#[tokio::test(start_paused = true)]
async fn each_layer_works_with_its_neighbours() {
    // Without limits, the parts of the budget work without each other.
    let mut layers = Layers::new(Limits::new());
    // A run that is completed after a drop is no layer's mistake here.
    layers.detach = layers.detach.limit(0);
    let mut order = layers.around_the_agent();
    order.push(around(layers.agent()));
    order.extend(layers.around_the_model());
    assert_eq!(order.len(), 29);
    let first_of_models = 12;
    for (at, three) in order.windows(3).enumerate() {
        let layer = checked(|model| {
            let stack = all(three, model);
            match at < first_of_models {
                true => stack,
                // The budget of a model call is that of its run.
                false => around(layers.budget.run())(stack),
            }
        });
        layer_check::readiness(&layer).await;
        layer_check::finished(&layer).await;
        layer_check::dropped(&layer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_whole_stack_is_a_layer() {
    let mut layers = Layers::new(Limits::new().model_calls(50).output_tokens(100_000));
    layers.detach = layers.detach.limit(0);
    check_layer(checked(|model| layers.whole(model))).await;
}

#[tokio::test(start_paused = true)]
async fn each_layer_of_tools_works_with_its_neighbours() {
    let layers = Layers::new(Limits::new()).around_tools();
    let all_and_each = [&layers[..]].into_iter().chain(layers.chunks(1));
    let in_run = MapRequestLayer::new(|mut call: ToolCall| {
        call.context.provide(Budget::new(Limits::new()));
        call
    });
    for some in all_and_each.chain(layers.windows(3)) {
        let layer = |tool: Strict<BoxTool>| in_run.layer(all(some, BoxTool::new(tool)));
        check_tool_layer(layer_fn(layer)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_layer_keeps_its_contract_around_an_agent() {
    let mut layers = Layers::new(Limits::new());
    layers.detach = layers.detach.limit(0);
    let of_models = layers.around_the_model();
    // The budget's part for models fails there.
    let of_models = of_models.iter().enumerate().filter(|(at, _)| *at != 15);
    let of_models = of_models.map(|(_, layer)| layer);
    for layer in layers.around_the_agent().iter().chain(of_models) {
        let around_agent = checked(|model| layer(around(layers.agent())(model)));
        check_layer(around_agent).await;
    }
}

#[test]
fn the_description_of_each_layer_has_its_name() {
    let layers = Layers::new(Limits::new());
    let mut order = layers.around_the_agent();
    order.push(around(layers.agent()));
    order.extend(layers.around_the_model());
    let names = order.iter().map(|layer| {
        let described = layer(BoxModel::new(ScriptedModel::new())).describe();
        let first = described.lines().next().unwrap();
        first.split_once(' ').unwrap().1.trim().to_owned()
    });
    let expected = [
        "Detach",
        "Log",
        "Guard",
        "Guardrail",
        "Suspend",
        "OtelService",
        "Conversation",
        "RunBudget",
        "Defaults",
        "StaticMemory",
        "DynamicMemory",
        "Agent",
        "Compaction",
        "ClearToolResults",
        "Trim",
        "TransformEvents",
        "Guard",
        "Guardrail",
        "ResponseCache",
        "Fallback",
        "tower::Retry",
        "CircuitBreaker",
        "Commit",
        "OtelService",
        "Log",
        "RateLimit",
        "InFlightLimit",
        "ModelBudget",
        "tower::Timeout",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

// ---- runs ----

/// The whole stack around a model that admits one call at a time.
struct Scene {
    layers: Layers,
    model: ScriptedModel,
    strict: Strict<ScriptedModel>,
    agent: BoxModel,
}

impl Scene {
    fn new(model: ScriptedModel) -> Self {
        let layers = Layers::new(Limits::new().model_calls(50).output_tokens(100_000));
        let strict = Strict::new(model.clone());
        let inner = Buffer::new(ConcurrencyLimit::new(strict.clone(), 1), 1);
        Self {
            agent: layers.whole(BoxModel::new(inner)),
            layers,
            model,
            strict,
        }
    }

    async fn run(&self, request: ChatRequest) -> Result<Answer, Error> {
        let response = self.agent.clone().oneshot(request).await?;
        response.collect().await.map_err(Error::from)
    }

    async fn assert_idle(&self) {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
        let open = (self.strict.reserved(), self.strict.running());
        assert_eq!((open, self.model.live()), ((0, 0), 0));
    }

    async fn stored(&self, thread: &str) -> Vec<String> {
        let tenant = Tenant("ann".into());
        let stored = self.layers.store.load(tenant, ThreadId::new(thread)).await;
        let history = stored.unwrap().map(|stored| stored.history);
        let history = history.unwrap_or_default();
        let turns = history.iter();
        turns.map(|turn| turn.as_message().text()).collect()
    }
}

fn user(text: &'static str, thread: &str) -> ChatRequest {
    ChatRequest::user(text).with_context(context(thread))
}

#[tokio::test(start_paused = true)]
async fn a_run_with_tools_is_suspended_and_resumed() {
    let scene = Scene::new(
        ScriptedModel::new()
            .text("Let me look.")
            .tool_call("look", json!({}))
            .tool_call("look", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
            .text("Paid, ann@example.com."),
    );
    let waits = scene.run(user("Pay bob@example.com.", "t")).await.unwrap();
    assert_eq!(waits.finish.outcome, Outcome::Interrupted);
    // The message and the closed round, as the model has read them.
    let stored = scene.stored("t").await;
    assert_eq!(stored, ["Pay [email].", "Let me look."]);
    let reply = Reply::approve(waits.finish.interrupts()[0].id.clone());
    let resumed = ChatRequest::replying(vec![reply]).with_context(context("t"));
    let answer = scene.run(resumed).await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(answer.text(), "Paid, [email].");
    let layers = &scene.layers;
    let ran = [&layers.looked, &layers.paid].map(|count| count.load(Ordering::SeqCst));
    // Equal calls of a tool share one execution.
    assert_eq!((ran, scene.model.calls()), ([1, 1], 3));
    let stored = scene.stored("t").await;
    assert_eq!(stored[0], "Pay [email].");
    assert_eq!(stored.last().unwrap(), "Paid, [email].");
    let ann = Tenant("ann".into());
    let memories = layers
        .store
        .search(ann, "ann".into(), "Pay".into(), 9)
        .await;
    assert_eq!(memories.unwrap().len(), 1);
    scene.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_leaves_nothing_open() {
    let gate = Gate::new();
    let model = ScriptedModel::new().text("Well, ").wait(&gate).text("no.");
    let scene = Scene::new(model.then().text("Yes."));
    let request = user("Hello?", "t");
    let context = request.context.clone();
    let run = tokio::spawn(scene.agent.clone().oneshot(request));
    gate.reached().await;
    context.cancel(CancelReason::User);
    let answer = run.await.unwrap().unwrap().collect().await.unwrap();
    let reason = CancelReason::User;
    assert_eq!(answer.finish.outcome, Outcome::Aborted { reason });
    scene.assert_idle().await;
    let next = scene.run(user("Again?", "other")).await.unwrap();
    assert_eq!(next.text(), "Yes.");
}

#[tokio::test(start_paused = true)]
async fn a_run_completes_without_its_consumer() {
    let gate = Gate::new();
    let model = ScriptedModel::new().text("Well, ").wait(&gate).text("yes.");
    let scene = Scene::new(model);
    let run = tokio::spawn(scene.agent.clone().oneshot(user("Hello?", "t")));
    gate.reached().await;
    run.abort();
    run.await.unwrap_err();
    gate.open();
    scene.layers.detach.shutdown().await;
    assert_eq!(scene.stored("t").await, ["Hello?", "Well, yes."]);
    scene.assert_idle().await;
}

// ---- wrong places ----

#[tokio::test(start_paused = true)]
async fn a_layer_of_runs_inside_a_loop_fails_the_first_call() {
    let layers = Layers::new(Limits::new().model_calls(50));
    let store = layers.store.clone();
    let cases: [(&str, Around); 5] = [
        ("DetachLayer", around(layers.detach.clone())),
        (
            "SuspendLayer",
            around(SuspendLayer::new(Arc::new(store.clone()))),
        ),
        (
            "ConversationLayer",
            around(ConversationLayer::new(store.clone())),
        ),
        (
            "DynamicMemoryLayer",
            around(DynamicMemoryLayer::new(store, |_| Some("ann".into()))),
        ),
        ("RunBudgetLayer", around(layers.budget.run())),
    ];
    for (name, layer) in cases {
        let model = ScriptedModel::new().text("Yes.");
        let agent = around(layers.agent())(layer(BoxModel::new(model.clone())));
        let error = agent.oneshot(user("hi", "t")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{name}: {error}");
        assert!(error.message().contains(name), "{name}: {error}");
        assert_eq!(model.calls(), 0, "{name}");
    }
}

// A resumed run would be a new one for the outer layer, and its turn would be lost after its effects.
#[tokio::test(start_paused = true)]
async fn a_layer_that_prepares_runs_around_one_that_keeps_them_fails_the_first_call() {
    let layers = Layers::new(Limits::new().model_calls(50));
    let store = layers.store.clone();
    let outer: [(&str, Around); 2] = [
        (
            "ConversationLayer",
            around(ConversationLayer::new(store.clone())),
        ),
        (
            "DynamicMemoryLayer",
            around(DynamicMemoryLayer::new(store.clone(), |_| {
                Some("ann".into())
            })),
        ),
    ];
    let inner: [(&str, Around); 2] = [
        ("SuspendLayer", around(SuspendLayer::new(Arc::new(store)))),
        ("DetachLayer", around(layers.detach.clone())),
    ];
    for (outside, outer) in &outer {
        for (inside, inner) in &inner {
            let model = ScriptedModel::new().text("Yes.");
            let agent = around(layers.agent())(BoxModel::new(model.clone()));
            let agent = outer(inner(agent));
            let error = agent.oneshot(user("hi", "t")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            for name in [outside, inside] {
                assert!(error.message().contains(name), "{error}");
            }
            assert_eq!(model.calls(), 0, "{error}");
        }
        let model = ScriptedModel::new().text("Yes.");
        let agent = around(layers.agent())(BoxModel::new(model.clone()));
        let target = SessionTarget::new(ThreadId::new("t"));
        let session = MakeSession::new(agent).oneshot(target).await.unwrap();
        let agent = outer(BoxModel::new(session));
        let error = agent.oneshot(user("hi", "t")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        for name in [outside, &"MakeSession"] {
            assert!(error.message().contains(name), "{error}");
        }
        assert_eq!(model.calls(), 0, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_model_calls_around_a_loop_acts_once_per_run() {
    let layers = Layers::new(Limits::new());
    for (at, layer) in layers.around_the_model().into_iter().enumerate() {
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Yes.");
        let agent = layer(around(layers.agent())(BoxModel::new(model.clone())));
        let agent = around(layers.budget.run())(agent);
        let answer = agent.oneshot(user("hi", "t")).await;
        let answer = match answer {
            Ok(answer) => answer.collect().await.unwrap(),
            // The budget's part for models.
            Err(error) => {
                assert_eq!(
                    (error.kind(), at),
                    (ErrorKind::Configuration, 15),
                    "{error}"
                );
                continue;
            }
        };
        assert_eq!((answer.text().as_str(), model.calls()), ("Yes.", 2), "{at}");
    }
}
