//! Layers that stand where they must not, or without what they rely on: what is refused, and when.
//!
//! What does not compile is in `tests/ui/tests/fail/placement_*.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use concentric_core::{
    AgentLayer, Capability, ChatRequest, ChatResponse, Context, Declares, Error, ErrorKind, Event,
    FinishReason, Layers, NoTools, Usage,
    capability::{
        CheckedLayer, Encloses, Expects, Fault, InLoop, Outside, Provides, Region, Requires, Table,
    },
    layers::{DefaultsLayer, ModelLayers, OfRunLayer, inspect_events},
};
use futures_util::stream;
use std::{
    error::Error as StdError,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
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
}

/// Provides `Fuel`, whatever it is.
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

/// A model that checks its stack, or one that does not.
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
            && let Err(error) = request.context.check_stack()
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

async fn ask<S, B>(stack: S) -> Result<(), Error>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    stack.oneshot(ChatRequest::user("hi")).await.map(drop)
}

fn fault(error: &Error) -> Fault {
    assert_eq!(error.kind(), ErrorKind::Configuration);
    *error.source().unwrap().downcast_ref().unwrap()
}

#[tokio::test]
async fn a_layer_inside_of_a_region_it_avoids_fails_the_call() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(CheckedLayer::new(RoomLayer))
        .layer(DefaultsLayer::new())
        .layer(CheckedLayer::new(OutdoorLayer))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert_eq!(
        fault(&error),
        Fault::Inside {
            layer: "placement::OutdoorLayer",
            outer: "placement::RoomLayer",
        }
    );
    assert_eq!(model.calls(), 0);

    let right = ServiceBuilder::new()
        .layer(CheckedLayer::new(OutdoorLayer))
        .layer(CheckedLayer::new(RoomLayer))
        .service(model.clone());
    ask(right).await.unwrap();
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_layer_for_runs_fails_inside_of_the_loop() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(CheckedLayer::new(OncePerRunLayer))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(error.message().contains("OncePerRunLayer"), "{error}");
    assert!(error.message().contains("AgentLayer"), "{error}");
    assert_eq!(model.calls(), 0);
}

#[test]
fn a_table_names_both_layers_of_a_wrong_order() {
    let table = Table::new().with(&RoomLayer).with(&OutdoorLayer);
    assert_eq!(
        table.check().unwrap_err().faults(),
        [Fault::Inside {
            layer: "placement::OutdoorLayer",
            outer: "placement::RoomLayer",
        }]
    );
    Table::new()
        .with(&OutdoorLayer)
        .with(&RoomLayer)
        .check()
        .unwrap();
    let in_loop = Table::new()
        .with(&AgentLayer::new(NoTools))
        .with(&OncePerRunLayer);
    assert_eq!(in_loop.check().unwrap_err().faults().len(), 1);
}

#[test]
fn a_table_names_what_no_layer_uses() {
    let table = Table::new().with(&TankLayer);
    let faults = table.check().unwrap_err();
    assert_eq!(
        faults.faults(),
        [Fault::Unused {
            layer: "placement::TankLayer",
            capability: "placement::Fuel",
            user: "placement::EngineLayer",
        }]
    );
    table.clone().with(&EngineLayer).check().unwrap();
    table.used::<Fuel>().check().unwrap();
}

#[tokio::test]
async fn a_layer_that_needs_another_inside_fails_without_it() {
    for model in [Model::default(), Model::careless()] {
        let stack = ServiceBuilder::new()
            .layer(CheckedLayer::new(TankLayer))
            .layer(AgentLayer::new(NoTools))
            .service(model.clone());
        let result = ask(stack).await;
        if model.is_careless {
            // Only a model knows that nothing else stands inside.
            result.unwrap();
            continue;
        }
        let error = result.unwrap_err();
        assert!(matches!(fault(&error), Fault::Unused { .. }), "{error}");
        assert!(error.message().contains("TankLayer"), "{error}");
        assert!(error.message().contains("EngineLayer"), "{error}");
        assert_eq!(model.calls(), 0);
    }

    let model = Model::default();
    let whole = Layers::new()
        .with(TankLayer)
        .with(AgentLayer::new(NoTools))
        .with(EngineLayer)
        .service(model.clone());
    ask(whole).await.unwrap();
    let whole = ServiceBuilder::new()
        .layer(CheckedLayer::new(TankLayer))
        .layer(AgentLayer::new(NoTools))
        .layer(CheckedLayer::new(EngineLayer))
        .service(model.clone());
    ask(whole).await.unwrap();
    assert_eq!(model.calls(), 2);
}

#[test]
fn a_service_inside_may_be_what_uses_a_capability() {
    let layers = Layers::new().with(TankLayer).used::<Fuel>();
    layers.table().check().unwrap();
    let _ = layers.service(Model::default());
}

#[tokio::test]
async fn a_missing_capability_is_named_with_its_provider() {
    let stack = ServiceBuilder::new()
        .layer(CheckedLayer::new(EngineLayer))
        .service(Model::default());
    let error = ask(stack).await.unwrap_err();
    assert!(error.message().contains("EngineLayer"), "{error}");
    assert!(error.message().contains("TankLayer"), "{error}");
}

#[test]
fn marks_do_not_reach_runs_inside() {
    let mut context = Context::new();
    let before = context.clone();
    context.enter::<RoomLayer>().unwrap();
    assert_eq!(context.region::<Room>(), Some("placement::RoomLayer"));
    assert_eq!(context.clone().region::<Room>(), context.region::<Room>());
    assert_eq!(before.region::<Room>(), None);
    let mut child = context.child().build();
    assert_eq!(child.region::<Room>(), None);
    assert!(context.enter::<OutdoorLayer>().is_err());
    assert!(child.enter::<OutdoorLayer>().is_ok());
}

#[test]
fn what_is_shared_is_known_in_runs_inside() {
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
    let mut request = ChatRequest::user("hi");
    let own = ModelLayers::new().layer(inspect_events(|_: &Event| {}));
    request.context.own_mut().insert(own);
    request
}

#[tokio::test]
async fn model_layers_of_a_run_are_applied_or_fail_it() {
    for (model, sent) in [(Model::default(), 0), (Model::careless(), 1)] {
        let agent = AgentLayer::new(NoTools).layer(model.clone());
        let error = agent.oneshot(watched()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.message().contains("InspectEvents") || error.message().contains("inspect"));
        assert!(error.message().contains("OfRunLayer"), "{error}");
        assert_eq!(model.calls(), sent);

        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .layer(OfRunLayer::new())
            .service(model.clone());
        agent.oneshot(watched()).await.unwrap();
        assert_eq!(model.calls(), sent + 1);
    }
}

#[tokio::test]
async fn model_layers_of_an_earlier_run_do_not_count() {
    let request = watched();
    let model = Model::careless();
    let right = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(OfRunLayer::new())
        .service(model.clone());
    let answer = right.oneshot(request.clone()).await.unwrap();
    answer.collect().await.unwrap();
    let wrong = AgentLayer::new(NoTools).layer(model);
    let error = wrong.oneshot(request).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}
