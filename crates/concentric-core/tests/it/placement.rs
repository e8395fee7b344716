//! Misplaced layers and layers without the layers that they rely on: which stacks are rejected, and
//! when.
//!
//! Stacks that do not compile are tested in `tests/ui/tests/fail/placement_*.rs`.

use crate::enters::Enters;
use concentric_core::{
    AgentLayer, BoxModel, Capability, ChatRequest, ChatResponse, Context, Declares, Error,
    ErrorKind, Event, EventStream, FinishReason, Layers, NoTools, RunOverrides, Usage,
    capability::{
        Around, CapabilityError, CapabilityTable, Encloses, Expects, InLoop, Outside, Provides,
        Region, Requires, Within,
    },
};
use concentric_layers::{Next, RequestDefaultsLayer, from_fn, inspect_events};
use futures_util::stream;
use std::{
    error::Error as StdError,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{self, Poll},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

enum Room {}

impl Region for Room {}

#[derive(Clone)]
struct Fuel;

impl Capability for Fuel {
    fn provider() -> Option<&'static str> {
        Some("TankLayer")
    }
}

macro_rules! layers {
    ($($name:ident: $declares:ty;)*) => {$(
        #[derive(Clone)]
        struct $name;

        impl Declares for $name {
            type Capabilities = $declares;
        }

        impl<S> Layer<S> for $name {
            type Service = Passes<S, $name>;

            fn layer(&self, inner: S) -> Self::Service {
                Passes(inner, std::marker::PhantomData)
            }
        }
    )*};
}

layers! {
    RoomLayer: Encloses<Room>;
    OutdoorLayer: Outside<Room>;
    OncePerRunLayer: Outside<InLoop>;
    TankLayer: (Provides<Fuel>, Expects<Fuel, EngineLayer>);
    EngineLayer: Requires<Fuel>;
    PerCallLayer: Within<InLoop>;
    PerRunLayer: Around<InLoop>;
}

/// Provides `Fuel`, whatever its value.
struct Passes<S, L>(S, std::marker::PhantomData<fn() -> L>);

impl<S: Clone, L> Clone for Passes<S, L> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1)
    }
}

impl<S, L> Service<ChatRequest> for Passes<S, L>
where
    S: Service<ChatRequest>,
    L: Declares,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> S::Future {
        if std::any::type_name::<L>().ends_with("TankLayer") {
            request.context.provide(Fuel);
        }
        self.0.call(request)
    }
}

type Answer = ChatResponse<stream::Iter<std::array::IntoIter<Result<Event, Error>, 2>>>;

/// A model that may or may not check its stack.
#[derive(Clone, Default)]
struct Model {
    calls: Arc<AtomicUsize>,
    is_careless: bool,
}

impl Model {
    fn careless() -> Self {
        Self {
            is_careless: true,
            ..Self::default()
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<ChatRequest> for Model {
    type Response = Answer;
    type Error = Error;
    type Future = Ready<Result<Answer, Error>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        if !self.is_careless
            && let Err(error) = request.check_stack()
        {
            return ready(Err(error));
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        ready(Ok(ChatResponse::new(stream::iter([
            Ok(Event::text("hi")),
            Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        ]))))
    }
}

/// A service that answers one tick later than its inner service and is always ready.
#[derive(Clone)]
struct Later<S>(S);

impl<S> Service<ChatRequest> for Later<S>
where
    S: Service<ChatRequest, Future: Send> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let mut inner = self.0.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            inner.call(request).await
        })
    }
}

/// Models that do not check their stack: one that answers at once, and one that answers a tick
/// later.
fn careless() -> [(Model, BoxModel); 2] {
    let (now, later) = (Model::careless(), Model::careless());
    let boxed = [
        BoxModel::new(now.clone()),
        BoxModel::new(Later(later.clone())),
    ];
    let [first, second] = boxed;
    [(now, first), (later, second)]
}

/// Answers without calling its inner service, like a cache, and declares no capabilities.
#[derive(Clone)]
struct Cache;

impl<S> Layer<S> for Cache {
    type Service = Model;

    fn layer(&self, _: S) -> Model {
        Model::careless()
    }
}

async fn ask<S, B>(stack: S) -> Result<(), Error>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    stack.oneshot(ChatRequest::user("hi")).await.map(drop)
}

fn fault(error: &Error) -> CapabilityError {
    assert_eq!(error.kind(), ErrorKind::Configuration);
    *error.source().unwrap().downcast_ref().unwrap()
}

#[tokio::test]
async fn a_layer_inside_a_region_it_avoids_fails_the_call() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(Enters(RoomLayer))
        .layer(RequestDefaultsLayer::new())
        .layer(Enters(OutdoorLayer))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert_eq!(
        fault(&error),
        CapabilityError::Inside {
            layer: "it::placement::OutdoorLayer",
            outer: "it::placement::RoomLayer",
        }
    );
    assert_eq!(model.calls(), 0);

    let right = ServiceBuilder::new()
        .layer(Enters(OutdoorLayer))
        .layer(Enters(RoomLayer))
        .service(model.clone());
    ask(right).await.unwrap();
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_run_layer_inside_the_loop_fails() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(Enters(OncePerRunLayer))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(error.message().contains("OncePerRunLayer"), "{error}");
    assert!(error.message().contains("AgentLayer"), "{error}");
    assert_eq!(model.calls(), 0);
}

#[test]
fn a_table_names_both_layers_of_a_wrong_order() {
    let table = CapabilityTable::new().with(&RoomLayer).with(&OutdoorLayer);
    assert_eq!(
        table.errors(),
        [CapabilityError::Inside {
            layer: "it::placement::OutdoorLayer",
            outer: "it::placement::RoomLayer",
        }]
    );
    CapabilityTable::new()
        .with(&OutdoorLayer)
        .with(&RoomLayer)
        .check()
        .unwrap();
    let in_loop = CapabilityTable::new()
        .with(&AgentLayer::new(NoTools))
        .with(&OncePerRunLayer);
    assert_eq!(in_loop.errors().len(), 1);
}

#[test]
fn a_table_names_an_unused_capability() {
    let table = CapabilityTable::new().with(&TankLayer);
    assert_eq!(
        table.errors(),
        [CapabilityError::Unused {
            layer: "it::placement::TankLayer",
            capability: "it::placement::Fuel",
            user: "it::placement::EngineLayer",
        }]
    );
    table.clone().with(&EngineLayer).check().unwrap();
    table.used::<Fuel>().check().unwrap();
}

#[tokio::test]
async fn a_layer_without_a_required_inner_layer_fails() {
    let model = Model::default();
    let checks = [(model.clone(), BoxModel::new(model))];
    for (model, boxed) in checks.into_iter().chain(careless()) {
        let stack = ServiceBuilder::new()
            .layer(Enters(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .service(boxed);
        let error = ask(stack).await.unwrap_err();
        assert!(
            matches!(fault(&error), CapabilityError::Unused { .. }),
            "{error}"
        );
        assert!(error.message().contains("TankLayer"), "{error}");
        assert!(error.message().contains("EngineLayer"), "{error}");
        // A model that does not check its stack is called once.
        assert_eq!(model.calls(), usize::from(model.is_careless));
    }

    let model = Model::default();
    let whole = Layers::new()
        .with(TankLayer)
        .with(AgentLayer::new(NoTools))
        .with(EngineLayer)
        .service(model.clone());
    ask(whole).await.unwrap();
    let whole = ServiceBuilder::new()
        .layer(Enters(TankLayer))
        .layer(AgentLayer::new(NoTools))
        .layer(Enters(EngineLayer))
        .service(model.clone());
    ask(whole).await.unwrap();
    assert_eq!(model.calls(), 2);
}

#[test]
fn an_inner_service_may_use_a_capability() {
    let layers = Layers::new().with(TankLayer).used::<Fuel>();
    layers.table().check().unwrap();
    let _ = layers.service(Model::default());
}

#[tokio::test]
async fn several_layers_may_use_one_capability() {
    let layers = Layers::new()
        .with(TankLayer)
        .with(AgentLayer::new(NoTools))
        .with(EngineLayer)
        .with(EngineLayer);
    layers.table().check().unwrap();
    // `Layers::service` does not compile, because the compiler finds two uses.
    ask(Layer::layer(&layers, Model::default())).await.unwrap();
}

#[tokio::test]
async fn a_service_that_reads_a_capability_uses_it() {
    for (model, boxed) in careless() {
        let stack = ServiceBuilder::new()
            .layer(Enters(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .map_request(|request: ChatRequest| {
                assert!(request.context.capability::<Fuel>().is_some());
                request
            })
            .service(boxed);
        ask(stack).await.unwrap();
        assert_eq!(model.calls(), 1);
    }
    // A layer outside the loop uses the capability as well.
    let stack = ServiceBuilder::new()
        .layer(Enters(TankLayer))
        .layer(Enters(EngineLayer))
        .layer(AgentLayer::new(NoTools))
        .service(Model::careless());
    ask(stack).await.unwrap();
    // A service that the stack declares as a user counts as well, also for a model that checks.
    for model in [Model::careless(), Model::default()] {
        let layers = Layers::new().with(TankLayer).with(AgentLayer::new(NoTools));
        ask(layers.used::<Fuel>().service(model)).await.unwrap();
    }
}

#[tokio::test]
async fn a_functions_answer_is_not_a_models() {
    async fn answers(_: ChatRequest, _: Next) -> Result<ChatResponse<EventStream>, Error> {
        let answer = ask_for_answer(Model::careless()).await?;
        Ok(answer)
    }
    async fn passes(
        request: ChatRequest,
        mut next: Next,
    ) -> Result<ChatResponse<EventStream>, Error> {
        next.run(request).await
    }
    for (model, boxed) in careless() {
        let stack = ServiceBuilder::new()
            .layer(Enters(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .layer(from_fn(answers))
            .layer(Enters(EngineLayer))
            .service(boxed.clone());
        ask(stack).await.unwrap();
        assert_eq!(model.calls(), 0);
        let stack = ServiceBuilder::new()
            .layer(Enters(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .layer(from_fn(passes))
            .service(boxed);
        ask(stack).await.unwrap_err();
    }
}

/// The answer of a model, with a boxed body.
async fn ask_for_answer(model: Model) -> Result<ChatResponse<EventStream>, Error> {
    BoxModel::new(model).oneshot(ChatRequest::user("hi")).await
}

#[tokio::test]
async fn a_layer_that_answers_itself_declares_it() {
    let stack = |skips: bool| {
        ServiceBuilder::new()
            .layer(Enters(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .map_request(move |request: ChatRequest| {
                if skips {
                    request.context.skip_stack_check();
                }
                request
            })
            .layer(Cache)
            .layer(Enters(EngineLayer))
            .service(Model::careless())
    };
    ask(stack(true)).await.unwrap();
    ask(stack(false)).await.unwrap_err();
}

/// Expects a layer around either all of its calls or none.
#[derive(Clone)]
struct Remembers<S>(S, Arc<AtomicBool>);

impl<S> Service<ChatRequest> for Remembers<S>
where
    S: Service<ChatRequest>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> S::Future {
        request.context.provide(Fuel);
        let entered = request.context.enter_expecting::<TankLayer>(&self.1);
        entered.unwrap();
        self.0.call(request)
    }
}

#[tokio::test]
async fn a_met_expectation_is_not_checked_at_the_answer() {
    let is_met = Arc::new(AtomicBool::new(false));
    let stack = || {
        let agent = AgentLayer::new(NoTools).layer(Model::careless());
        Remembers(agent, Arc::clone(&is_met))
    };
    ask(stack()).await.unwrap_err();
    let engine = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(Enters(EngineLayer))
        .service(Model::careless());
    ask(Remembers(engine, Arc::clone(&is_met))).await.unwrap();
    assert!(is_met.load(Ordering::SeqCst));
    // After an expectation was met once, another layer may answer later calls.
    ask(stack()).await.unwrap();
}

#[tokio::test]
async fn a_nested_agent_checks_the_stack_of_its_own_model() {
    let expecting = || ServiceBuilder::new().layer(Enters(TankLayer));
    for (model, boxed) in careless() {
        let nested = expecting()
            .layer(AgentLayer::new(NoTools))
            .layer(AgentLayer::new(NoTools));
        let whole = nested.clone().layer(Enters(EngineLayer));
        ask(whole.service(boxed.clone())).await.unwrap();
        let error = ask(nested.service(boxed)).await.unwrap_err();
        assert!(
            matches!(fault(&error), CapabilityError::Unused { .. }),
            "{error}"
        );
        assert_eq!(model.calls(), 2);
    }
}

// ---- layers for runs, and for model calls ----

#[tokio::test]
async fn a_model_layer_around_an_agent_fails() {
    for (model, boxed) in careless() {
        let agent = AgentLayer::new(NoTools).layer(boxed.clone());
        let wrong = ServiceBuilder::new()
            .layer(Enters(PerCallLayer))
            .layer(RequestDefaultsLayer::new())
            .service(agent);
        let error = ask(wrong).await.unwrap_err();
        let CapabilityError::Inside { layer, outer } = fault(&error) else {
            panic!("{error}");
        };
        assert!(layer.contains("AgentLayer"), "{layer}");
        assert_eq!(outer, "it::placement::PerCallLayer");
        assert_eq!(model.calls(), 0);

        // Correct placements: around the model, around a nested agent, and around a model without a
        // loop.
        let right = ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .layer(Enters(PerCallLayer));
        ask(right.clone().service(boxed.clone())).await.unwrap();
        let nested = right.layer(AgentLayer::new(NoTools));
        ask(nested.service(boxed.clone())).await.unwrap();
        let bare = ServiceBuilder::new().layer(Enters(PerCallLayer));
        ask(bare.service(boxed)).await.unwrap();
    }
}

#[tokio::test]
async fn a_run_layer_around_the_model_of_a_loop_fails() {
    let wrong = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(Enters(PerRunLayer));
    for (model, boxed) in careless() {
        let error = ask(wrong.clone().service(boxed.clone())).await.unwrap_err();
        let CapabilityError::Inside { layer, outer } = fault(&error) else {
            panic!("{error}");
        };
        assert_eq!((layer, outer), ("it::placement::PerRunLayer", "AgentLayer"));
        // Every call fails.
        ask(wrong.clone().service(boxed.clone())).await.unwrap_err();
        assert_eq!(model.calls(), 2);

        let nested = wrong.clone().layer(AgentLayer::new(NoTools));
        ask(nested.service(boxed.clone())).await.unwrap();
        let twice = wrong.clone().layer(AgentLayer::new(NoTools));
        let twice = twice.layer(Enters(PerRunLayer));
        ask(twice.service(boxed.clone())).await.unwrap_err();
        let right = ServiceBuilder::new()
            .layer(Enters(PerRunLayer))
            .layer(AgentLayer::new(NoTools));
        ask(right.service(boxed.clone())).await.unwrap();
        let bare = Enters(PerRunLayer).layer(boxed);
        ask(bare).await.unwrap();
    }
    let model = Model::default();
    ask(wrong.service(model.clone())).await.unwrap_err();
    assert_eq!(model.calls(), 0);
}

#[test]
fn a_table_distinguishes_layers_for_runs_and_for_model_calls() {
    let agent = || AgentLayer::new(NoTools);
    let faults = |table: CapabilityTable| table.errors();
    let inside = |faults: &[CapabilityError], first: &str, second: &str| {
        let [CapabilityError::Inside { layer, outer }] = faults else {
            panic!("{faults:?}");
        };
        assert!(
            layer.contains(first) && outer.contains(second),
            "{faults:?}"
        );
    };
    let call_outside = CapabilityTable::new().with(&PerCallLayer).with(&agent());
    inside(&faults(call_outside), "AgentLayer", "PerCallLayer");
    let run_inside = CapabilityTable::new().with(&agent()).with(&PerRunLayer);
    inside(&faults(run_inside), "PerRunLayer", "AgentLayer");
    for right in [
        CapabilityTable::new()
            .with(&PerRunLayer)
            .with(&agent())
            .with(&PerCallLayer),
        CapabilityTable::new()
            .with(&agent())
            .with(&PerCallLayer)
            .with(&agent()),
        CapabilityTable::new()
            .with(&agent())
            .with(&PerRunLayer)
            .with(&agent()),
        CapabilityTable::new().with(&PerCallLayer),
        CapabilityTable::new().with(&PerRunLayer),
    ] {
        assert_eq!(faults(right), []);
    }
}

#[tokio::test]
async fn layers_in_their_correct_places_are_accepted() {
    let stack = Layers::new()
        .with(PerRunLayer)
        .with(AgentLayer::new(NoTools))
        .with(PerCallLayer)
        .service(Model::default());
    ask(stack).await.unwrap();
    // A nested agent has a stack of its own.
    let inner = Layers::new()
        .with(PerRunLayer)
        .with(AgentLayer::new(NoTools))
        .with(PerCallLayer)
        .service(Model::default());
    let outer = Layers::new()
        .with(AgentLayer::new(NoTools))
        .with(PerCallLayer)
        .service(inner);
    ask(outer).await.unwrap();
}

#[tokio::test]
async fn a_missing_capability_is_reported_with_its_provider() {
    let stack = ServiceBuilder::new()
        .layer(Enters(EngineLayer))
        .service(Model::default());
    let error = ask(stack).await.unwrap_err();
    assert!(error.message().contains("EngineLayer"), "{error}");
    assert!(error.message().contains("TankLayer"), "{error}");
}

#[test]
fn marks_do_not_apply_to_nested_runs() {
    let mut context = Context::new();
    let before = context.clone();
    context.enter::<RoomLayer>().unwrap();
    assert_eq!(context.region::<Room>(), Some("it::placement::RoomLayer"));
    assert_eq!(context.clone().region::<Room>(), context.region::<Room>());
    assert_eq!(before.region::<Room>(), None);
    let mut child = context.child().build();
    assert_eq!(child.region::<Room>(), None);
    assert!(context.enter::<OutdoorLayer>().is_err());
    assert!(child.enter::<OutdoorLayer>().is_ok());
}

#[test]
fn shared_marks_apply_to_nested_runs() {
    let (one, other) = (Arc::new(1), Arc::new(1));
    let mut context = Context::new();
    assert!(context.enter_shared(&one));
    assert!(context.enter_shared(&other));
    assert!(!context.enter_shared(&one));
    let mut child = context.child().build();
    assert!(!child.enter_shared(&one));
    assert!(child.enter_shared(&Arc::new(1)));
    assert!(Context::new().enter_shared(&one));
}

// ---- the model layers of one run ----

fn watched() -> ChatRequest {
    let own = RunOverrides::new().model_layer(inspect_events(|_: &Event| {}));
    ChatRequest::user("hi").with_overrides(own)
}

#[tokio::test]
async fn model_layers_of_a_run_are_applied_or_rejected() {
    for model in [Model::default(), Model::careless()] {
        let agent = AgentLayer::new(NoTools).layer(model.clone());
        let error = agent.oneshot(watched()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.message().contains("InspectEvents") || error.message().contains("inspect"));
        assert!(error.message().contains("AgentLayer::boxed"), "{error}");
        assert_eq!(model.calls(), 0);

        let agent = AgentLayer::new(NoTools).boxed().layer(model.clone());
        agent.oneshot(watched()).await.unwrap();
        assert_eq!(model.calls(), 1);
    }
    // Without a loop, nothing applies them.
    let error = Model::default().oneshot(watched()).await.map(drop);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
}
