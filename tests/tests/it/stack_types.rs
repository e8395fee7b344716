//! Where a stack can be put: into a field, into axum's state, into another stack, into a task.

use axum::{Router, extract::State, routing::get};
use concentric_core::{
    Agent, AgentLayer, BoxModel, BoxTool, ChatRequest, Context, Environment, Error, Event,
    EventStream, ModelService, NoTools, Transcript,
    agent::AgentBody,
    service::{BoxFuture, check_model},
};
use concentric_layers::InFlightLimitLayer;
use concentric_layers::{
    CommitLayer, Emit, End, Next, RequestDefaultsLayer, Transform, TransformLayer, from_fn,
    inspect_events, map_events, on_end,
};
use concentric_test::{
    Gate, ManualClock, ScriptedModel, ScriptedTools, Strict, TestEnvironment, assert_finishes,
};
use std::{collections::HashMap, sync::Arc};
use tower::{Service, ServiceBuilder, ServiceExt};

fn shared<T: Clone + Send + Sync + 'static>(value: T) -> T {
    value
}

fn sent<T: Send + 'static>() {}

fn unpin<T: Unpin>() {}

#[derive(Clone, Default)]
struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// A stack with one of each.
fn stack(
    model: ScriptedModel,
) -> impl ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static
{
    check_model(shared(
        ServiceBuilder::new()
            .layer(on_end(|_: End<'_>| {}))
            .layer(RequestDefaultsLayer::new().system("Be brief."))
            .layer(from_fn(async |request: ChatRequest, mut next: Next| {
                next.run(request).await
            }))
            .layer(AgentLayer::new(ScriptedTools::new()))
            .layer(TransformLayer::new(|_: &ChatRequest| Same))
            .layer(map_events(|_: &mut Event| {}))
            .layer(inspect_events(|_: &Event| {}))
            .layer(CommitLayer::first_event())
            .layer(InFlightLimitLayer::new(8))
            .service(Strict::new(model)),
    ))
}

#[test]
fn what_can_be_shared_and_sent() {
    shared(stack(ScriptedModel::new()));
    shared(BoxModel::new(stack(ScriptedModel::new())));
    shared(TestEnvironment::new());
    shared(ManualClock::new());
    shared(Gate::new());
    shared(ScriptedTools::new());
    shared(InFlightLimitLayer::new(1));
    shared(ChatRequest::user("hi"));
    shared(Context::new());
    shared(Environment::system());
    shared(Transcript::new());
    sent::<BoxTool>();
    sent::<EventStream>();
    sent::<BoxFuture<()>>();
    sent::<Event>();
    sent::<Error>();
    // A body in a box can be read with `StreamExt` as it is.
    unpin::<EventStream>();

    type Model = BoxModel;
    type AgentFuture = <Agent<Model, NoTools> as Service<ChatRequest>>::Future;
    sent::<AgentFuture>();
    sent::<AgentBody<Model, EventStream, NoTools, concentric_core::agent::NoOutcomes>>();
}

#[tokio::test]
async fn an_agent_in_a_field_and_in_a_map() {
    struct App {
        agents: HashMap<&'static str, BoxModel>,
    }
    let app = Arc::new(App {
        agents: HashMap::from([
            (
                "a",
                BoxModel::new(stack(ScriptedModel::new().text("I am A"))),
            ),
            (
                "b",
                BoxModel::new(ScriptedModel::new().text("I am a model")),
            ),
        ]),
    });
    let answers = ["a", "b"].map(|name| {
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let agent = app.agents[name].clone();
            let answer = agent.oneshot(ChatRequest::user("hi")).await?;
            answer.text().await
        })
    });
    let mut texts = Vec::new();
    for answer in answers {
        texts.push(answer.await.unwrap().unwrap());
    }
    assert_eq!(texts, ["I am A", "I am a model"]);
}

#[tokio::test]
async fn an_agent_in_axums_state() {
    async fn ask(State(agent): State<BoxModel>) -> Result<String, String> {
        let answer = agent.oneshot(ChatRequest::user("hi")).await;
        let answer = answer.map_err(|error| error.to_string())?;
        answer.text().await.map_err(|error| error.to_string())
    }
    let agent = BoxModel::new(stack(ScriptedModel::new().text("hello")));
    let app: Router = Router::new().route("/", get(ask)).with_state(agent);
    let request = axum::http::Request::new(axum::body::Body::empty());
    let response = app.oneshot(request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 1024).await;
    assert_eq!(body.unwrap(), "hello");
}

#[tokio::test]
async fn an_agent_in_a_models_place() {
    let inner = BoxModel::new(stack(ScriptedModel::new().text("from within")));
    let outer = BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(inner),
    );
    // Boxing what is boxed costs a layer of it, and no more meaning.
    let outer = BoxModel::new(outer);
    let response = outer.oneshot(ChatRequest::user("hi")).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    assert_eq!(concentric_test::text_of(&events), "from within");
    assert_eq!(
        concentric_test::shape(&events),
        "step_start text step_finish finish"
    );
    assert_eq!(finish.transcript.unwrap().len(), 2);
}

#[tokio::test]
async fn many_runs_of_one_agent_in_many_tasks() {
    let model = ScriptedModel::new().deltas(["a", "b"]).repeat();
    let agent = BoxModel::new(stack(model.clone()));
    let runs: Vec<_> = (0..64)
        .map(|_| {
            let agent = agent.clone();
            tokio::spawn(async move {
                let answer = agent.oneshot(ChatRequest::user("hi")).await?;
                answer.text().await
            })
        })
        .collect();
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap(), "ab");
    }
    assert_eq!((model.calls(), model.live()), (64, 0));
    assert!(model.most_live() <= 8);
}
