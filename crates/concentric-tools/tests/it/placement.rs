//! Layers of tools that stand where their docs say that they must not: what fails, and when.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason, Layers,
    Usage,
    capability::{CapabilityError, CapabilityTable, Declares},
};
use concentric_tools::{
    LazyTools, Matcher, NoArguments, Skill, Skills, Toolset, offer_tools, output::output, tool,
};
use futures_util::stream;
use std::{
    any::type_name,
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt, service_fn};

/// The names of the tools that a model was offered, call by call.
type Offered = Arc<Mutex<Vec<Vec<String>>>>;

/// A model by hand, which does not check its stack; it answers at once, or a tick later.
fn models() -> [(BoxModel, Offered); 2] {
    [false, true].map(|is_later| {
        let offered = Offered::default();
        let calls = Arc::clone(&offered);
        let model = service_fn(move |request: ChatRequest| {
            let names = request.tools.iter().map(|spec| spec.name.to_string());
            calls.lock().unwrap().push(names.collect());
            async move {
                if is_later {
                    tokio::task::yield_now().await;
                }
                Ok::<_, Error>(ChatResponse::new(stream::iter([
                    Ok(Event::text("1")),
                    Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
                ])))
            }
        });
        (BoxModel::new(model), offered)
    })
}

fn tools() -> Toolset {
    Toolset::new()
        .tool(tool("now", "Tells the time.", |NoArguments {}| async {
            "noon"
        }))
        .tool(tool("refund", "Pays back.", |NoArguments {}| async {
            "paid"
        }))
}

fn skills() -> Skills {
    Skills::new().skill(Skill::new("refunds", "How to pay back.", "Ask.").unlocks("refund"))
}

async fn fails<L>(layer: &L, model: &BoxModel)
where
    L: Declares + Layer<BoxModel>,
    L::Service: concentric_core::ModelService<Body: Send + 'static, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let agent = BoxModel::new(AgentLayer::new(tools()).layer(model.clone()));
    let wrong = BoxModel::new(layer.layer(agent));
    let error = wrong.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    // Both without modules.
    let path = type_name::<L>().split('<').next().unwrap();
    let name = path.rsplit("::").next().unwrap();
    for name in ["AgentLayer", name] {
        assert!(error.message().contains(&format!("`{name}")), "{error}");
    }

    let table = CapabilityTable::new()
        .with(layer)
        .with(&AgentLayer::new(tools()));
    let errors = table.errors();
    assert!(
        matches!(errors[..], [CapabilityError::Inside { .. }]),
        "{errors:?}"
    );
    // A model without a loop may have it.
    let bare = BoxModel::new(layer.layer(model.clone()));
    bare.oneshot(ChatRequest::user("hi")).await.unwrap();
}

#[tokio::test]
async fn layers_of_tools_fail_around_an_agent() {
    for (model, offered) in models() {
        let (_, lazy) = LazyTools::new("refund").wrap(tools());
        fails(&lazy, &model).await;
        let (_, skills) = skills().wrap(tools()).unwrap();
        fails(&skills, &model).await;
        fails(&offer_tools(|_, _| true), &model).await;
        fails(&output::<u32>("number"), &model).await;
        // Those without a loop only.
        assert_eq!(offered.lock().unwrap().len(), 4);
    }
}

#[tokio::test]
async fn layers_of_tools_stand_inside_of_the_loop() {
    for (model, _) in models() {
        let (tools, lazy) = LazyTools::new("refund").wrap(tools());
        let (tools, skills) = skills().wrap(tools).unwrap();
        let agent = Layers::new()
            .with(AgentLayer::new(tools))
            .with(lazy)
            .with(skills)
            .with(offer_tools(|_, _| true))
            .with(output::<u32>("number"));
        agent.table().check().unwrap();
        let answer = agent.service(model).oneshot(ChatRequest::user("hi")).await;
        assert_eq!(answer.unwrap().text().await.unwrap(), "1");
    }
}

#[tokio::test]
async fn what_finds_tools_is_never_hidden() {
    let everything = || Skills::new().skill(Skill::new("all", "All.", "All.").unlocks("*"));
    let lazily = || LazyTools::new(Matcher::all());
    for lazy_first in [true, false] {
        let (tools, lazy, skills) = if lazy_first {
            let (tools, lazy) = lazily().wrap(tools());
            let (tools, skills) = everything().wrap(tools).unwrap();
            (tools, lazy, skills)
        } else {
            let (tools, skills) = everything().wrap(tools()).unwrap();
            let (tools, lazy) = lazily().wrap(tools);
            (tools, lazy, skills)
        };
        for (model, offered) in models() {
            let agent = AgentLayer::new(tools.clone());
            let agent = agent.layer(lazy.layer(skills.layer(model)));
            agent.oneshot(ChatRequest::user("hi")).await.unwrap();
            let mut offered = offered.lock().unwrap().concat();
            offered.sort();
            assert_eq!(offered, ["find_tools", "load_skill"]);
        }
    }
}
