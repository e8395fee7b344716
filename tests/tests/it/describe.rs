//! The description of a stack lists its layers.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Event, Plugin, agent::Installer, describe::describe,
};
use concentric_layers::InFlightLimitLayer;
use concentric_layers::{
    CommitLayer, Emit, End, Next, RequestDefaultsLayer, Transform, TransformLayer, from_fn,
    inspect_events, on_end,
};
use concentric_test::{ScriptedModel, ScriptedTools};
use std::time::Duration;
use tower::{Layer, ServiceBuilder, limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};

#[derive(Clone, Default)]
struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

#[test]
fn a_whole_stack_in_order() {
    let agent = ServiceBuilder::new()
        .layer(on_end(|_: End<'_>| {}))
        .layer(RequestDefaultsLayer::new().system("Be brief."))
        .timeout(Duration::from_secs(30))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(from_fn(async |request: ChatRequest, mut next: Next| {
            next.run(request).await
        }))
        .map_request(|request: ChatRequest| request)
        .layer(TransformLayer::new(|_: &ChatRequest| Same))
        .layer(inspect_events(|_: &Event| {}))
        .load_shed()
        .concurrency_limit(8)
        .layer(InFlightLimitLayer::new(8))
        .service(ScriptedModel::new());
    let expected = "\
run       OnEnd
run       Defaults
run       tower::Timeout
run       Agent
round     ScriptedTools
model     FromFn
model     tower::MapRequest
model     TransformEvents
model     MapEvents
model     tower::LoadShed
model     tower::ConcurrencyLimit
model     InFlightLimit
model     ScriptedModel";
    assert_eq!(describe(&agent), expected);
    assert_eq!(BoxModel::new(agent).describe(), expected);
}

#[test]
fn what_configures_a_layer_is_not_taken_for_its_service() {
    let model = CommitLayer::first_sentence().layer(ScriptedModel::new());
    assert_eq!(
        describe(&model),
        "\
model     Commit
model     ScriptedModel"
    );
}

#[test]
fn an_agent_describes_itself() {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .concurrency_limit(8)
        .service(ScriptedModel::new());
    assert_eq!(
        agent.describe(),
        "\
run       Agent
round     ScriptedTools
model     tower::ConcurrencyLimit
model     ScriptedModel"
    );
}

/// Adds a layer around the run, and one around each model call.
struct Limits;

impl Plugin for Limits {
    fn install(self, at: &mut Installer<'_>) {
        at.run_layer(TimeoutLayer::new(Duration::from_secs(1)));
        at.model_layer(ConcurrencyLimitLayer::new(8));
    }
}

#[test]
fn a_boxed_agent_describes_the_layers_of_its_plugins() {
    let layer = AgentLayer::new(ScriptedTools::new()).with(Limits);
    assert_eq!(
        layer.layer(ScriptedModel::new()).describe(),
        "\
run       tower::Timeout
run       Agent
round     ScriptedTools
model     tower::ConcurrencyLimit
model     ScriptedModel"
    );
}

/// A policy whose type's name is longer than that of the service under it.
#[derive(Clone)]
struct APolicyWithQuiteALongNameThatSaysWhatItDoes;

impl<Res, E> tower::retry::Policy<ChatRequest, Res, E>
    for APolicyWithQuiteALongNameThatSaysWhatItDoes
{
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut ChatRequest, _: &mut Result<Res, E>) -> Option<Self::Future> {
        None
    }

    fn clone_request(&mut self, _: &ChatRequest) -> Option<ChatRequest> {
        None
    }
}

#[test]
fn policies_and_predicates_are_not_taken_for_services() {
    let model = ServiceBuilder::new()
        .retry(APolicyWithQuiteALongNameThatSaysWhatItDoes)
        .filter(Ok::<ChatRequest, concentric_core::Error>)
        .service(ScriptedModel::new());
    assert_eq!(
        describe(&model),
        "\
model     tower::Retry
model     tower::Filter
model     ScriptedModel"
    );
}

#[tokio::test]
async fn a_buffer_hides_what_is_behind_it() {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .buffer(4)
        .concurrency_limit(8)
        .service(ScriptedModel::new());
    // Its type names the future of what is behind it, and not the service.
    assert_eq!(
        agent.describe(),
        "\
run       Agent
round     ScriptedTools
model     tower::Buffer"
    );
}
