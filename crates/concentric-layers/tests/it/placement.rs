//! Built-in layers that stand where their docs say that they must not: what fails, and when.
//!
//! What does not compile is in `tests/ui/tests/fail/placement_*.rs`.

use concentric_core::hooks::{self, Flow, Hooks};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event,
    EventStream, FinishReason, Layers, RunOverrides, Str, ThreadId, Usage,
    capability::{CapabilityError, CapabilityTable},
};
use concentric_layers::{
    BudgetPlugin, DetachLayer, Steering,
    budget::{Budget, Limits},
    session::{MakeSession, Session, SessionTarget},
    stop::{Judgement, OutputConstraint},
};
use concentric_layers::{Next, from_fn};
use concentric_test::{Pace, ScriptedModel, ScriptedTools};
use concentric_tools::output::output;
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn talker() -> ScriptedModel {
    ScriptedModel::new().text("Yes.").repeat()
}

fn no_tools() -> AgentLayer<ScriptedTools> {
    AgentLayer::new(ScriptedTools::new())
}

/// A model by hand, which does not check its stack; it answers at once, or a tick later.
struct Plain {
    model: BoxModel,
    calls: Arc<AtomicUsize>,
}

impl Plain {
    fn both() -> [Self; 2] {
        [false, true].map(|is_later| {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let model = service_fn(move |_: ChatRequest| {
                counted.fetch_add(1, Ordering::SeqCst);
                async move {
                    if is_later {
                        tokio::task::yield_now().await;
                    }
                    Ok::<_, Error>(yes())
                }
            });
            Self {
                model: BoxModel::new(model),
                calls,
            }
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn yes() -> ChatResponse<EventStream> {
    let events = [
        Ok(Event::text("Yes.")),
        Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
    ];
    ChatResponse::new(EventStream::new(futures_util::stream::iter(events)))
}

async fn fails(agent: BoxModel, names: [&str; 2]) {
    let error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_names(&error, names);
}

async fn answers(agent: BoxModel) {
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "Yes.");
}

/// Calls the agent, which fails before the model is called; the error names both layers.
async fn assert_wrong(agent: BoxModel, model: &ScriptedModel, names: [&str; 2]) {
    let error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_names(&error, names);
    assert_eq!(model.calls(), 0);
}

fn assert_names(error: &Error, names: [&str; 2]) {
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for name in names {
        assert!(error.message().contains(name), "{error}");
    }
}

// ---- budgets ----

#[tokio::test]
async fn a_budget_that_charges_nothing_fails_the_first_call() {
    let model = talker();
    for limits in [
        Limits::new().money(1),
        Limits::new().total_tokens(1),
        Limits::new().model_calls(1),
        Limits::new().time_ms(1),
    ] {
        let budget = BudgetPlugin::new(limits);
        let agent = ServiceBuilder::new()
            .layer(budget.run())
            .layer(no_tools())
            .service(model.clone());
        let names = ["RunBudgetLayer", "ModelBudgetLayer"];
        assert_wrong(BoxModel::new(agent), &model, names).await;
    }
}

#[tokio::test]
async fn a_budget_of_the_host_that_is_not_charged_fails_the_call() {
    let model = talker();
    let agent = ServiceBuilder::new()
        .layer(BudgetPlugin::new(Limits::new()).run())
        .layer(no_tools())
        .service(model.clone());
    let mut request = ChatRequest::user("hi");
    let tenant = Budget::new(Limits::new().money(1));
    request.context.provide(tenant);
    let error = agent.clone().oneshot(request).await.unwrap_err();
    assert_names(&error, ["RunBudgetLayer", "ModelBudgetLayer"]);
    // Without any limit, there is nothing to charge.
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
}

#[tokio::test]
async fn a_budget_of_tool_calls_needs_no_layer_around_the_model() {
    let agent = ServiceBuilder::new()
        .layer(BudgetPlugin::new(Limits::new().tool_calls(1)).run())
        .layer(no_tools())
        .service(talker());
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
}

#[tokio::test]
async fn a_model_that_charges_no_budget_fails_the_first_call() {
    let model = talker();
    let budget = BudgetPlugin::new(Limits::new().money(1));
    let agent = ServiceBuilder::new()
        .layer(no_tools())
        .layer(budget.model())
        .service(model.clone());
    let names = ["RunBudgetLayer", "ModelBudgetLayer"];
    assert_wrong(BoxModel::new(agent), &model, names).await;
}

#[tokio::test]
async fn a_model_call_that_is_charged_twice_fails() {
    let model = talker();
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(no_tools())
        .layer(budget.model())
        // An agent in the model's place, whose own calls are charged.
        .layer(no_tools())
        .layer(budget.model())
        .service(model.clone());
    let names = ["ModelBudgetLayer", "ModelBudgetLayer"];
    assert_wrong(BoxModel::new(agent), &model, names).await;
}

#[test]
fn a_table_finds_a_budget_that_is_not_whole() {
    let budget = BudgetPlugin::new(Limits::new());
    let faults = |table: CapabilityTable| table.errors();
    let run = || CapabilityTable::new().with(&budget.run());
    assert!(matches!(
        faults(run())[..],
        [CapabilityError::Unused { .. }]
    ));
    assert_eq!(faults(run().with(&budget.model())), []);
    let model = CapabilityTable::new().with(&budget.model());
    assert!(matches!(
        faults(model)[..],
        [CapabilityError::Missing { .. }]
    ));
    let twice = run().with(&budget.model()).with(&budget.model());
    assert!(matches!(
        faults(twice)[..],
        [CapabilityError::Inside { .. }]
    ));
    let swapped = CapabilityTable::new()
        .with(&budget.model())
        .with(&budget.run());
    assert!(faults(swapped).len() >= 2);
}

#[tokio::test]
async fn a_budget_over_a_model_by_hand_fails_the_first_call() {
    for plain in Plain::both() {
        let budget = BudgetPlugin::new(Limits::new().money(1));
        let agent = ServiceBuilder::new()
            .layer(budget.run())
            .layer(no_tools())
            .service(plain.model.clone());
        let names = ["RunBudgetLayer", "ModelBudgetLayer"];
        fails(BoxModel::new(agent), names).await;
        // Where nothing is to be charged, nothing is missing.
        let none = ServiceBuilder::new()
            .layer(BudgetPlugin::new(Limits::new().tool_calls(1)).run())
            .layer(no_tools())
            .service(plain.model.clone());
        answers(BoxModel::new(none)).await;

        let (run, model) = (budget.run(), BudgetPlugin::new(Limits::new()).model());
        let nested = ServiceBuilder::new()
            .layer(run)
            .layer(no_tools())
            .layer(no_tools());
        fails(
            BoxModel::new(nested.clone().service(plain.model.clone())),
            names,
        )
        .await;
        answers(BoxModel::new(nested.layer(model).service(plain.model))).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_a_models_need_not_be_charged() {
    struct Halts;

    impl Hooks for Halts {
        fn id(&self) -> &str {
            "halts"
        }

        async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
            Ok(Flow::halt("enough"))
        }
    }

    async fn cached(_: ChatRequest, _: Next) -> Result<ChatResponse<EventStream>, Error> {
        Ok(yes())
    }

    for plain in Plain::both() {
        let run = || BudgetPlugin::new(Limits::new().money(1_000)).run();
        let model = || BudgetPlugin::new(Limits::new()).model();
        let by_function = ServiceBuilder::new()
            .layer(run())
            .layer(no_tools())
            .layer(from_fn(cached))
            .layer(model())
            .service(plain.model.clone());
        answers(BoxModel::new(by_function)).await;
        let by_hook = ServiceBuilder::new()
            .layer(run())
            .layer(no_tools())
            .layer(hooks::model(Arc::new(Halts)))
            .layer(model())
            .service(plain.model.clone());
        by_hook.oneshot(ChatRequest::user("hi")).await.unwrap();
        // A cache that knows nothing of this; the budget's own layer stands around the model.
        let budget = BudgetPlugin::new(Limits::new().money(1_000));
        let charged = budget.model().layer(plain.model.clone());
        let cache = service_fn(move |_: ChatRequest| {
            let _ = &charged;
            async { Ok::<_, Error>(yes()) }
        });
        let agent = budget.run().layer(no_tools().layer(cache));
        answers(BoxModel::new(agent)).await;
        assert_eq!(plain.calls(), 0);
    }
}

// ---- layers for runs, and for model calls ----

struct Quiet;

impl Hooks for Quiet {
    fn id(&self) -> &str {
        "quiet"
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        Ok(Flow::Continue)
    }
}

/// Hooks with a method that is called before, and without one.
fn quiet() -> Arc<Quiet> {
    Arc::new(Quiet)
}

#[tokio::test]
async fn layers_for_model_calls_fail_around_an_agent() {
    struct Nothing;

    impl Hooks for Nothing {
        fn id(&self) -> &str {
            "nothing"
        }
    }

    for plain in Plain::both() {
        let agent = BoxModel::new(no_tools().layer(plain.model.clone()));
        let wrong = |layered: BoxModel, name| fails(layered, ["AgentLayer", name]);
        let layered = hooks::model(quiet()).layer(agent.clone());
        wrong(BoxModel::new(layered), "HooksLayer").await;
        let layered = hooks::model(Arc::new(Nothing)).layer(agent.clone());
        wrong(BoxModel::new(layered), "HooksLayer").await;
        let budget = BudgetPlugin::new(Limits::new().model_calls(5));
        let layered = budget.run().layer(budget.model().layer(agent));
        wrong(BoxModel::new(layered), "ModelBudgetLayer").await;
        assert_eq!(plain.calls(), 0);

        // Around a model without a loop they may stand.
        answers(BoxModel::new(hooks::model(quiet()).layer(plain.model))).await;
    }
}

#[tokio::test]
async fn layers_for_runs_fail_around_the_model_of_a_loop() {
    type RunLayer<'a> = Box<dyn Fn(BoxModel) -> BoxModel + 'a>;
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let charged = |model: &BoxModel| BoxModel::new(budget.model().layer(model.clone()));
    let run_layers: [(&str, RunLayer<'_>); 3] = [
        (
            "HooksLayer",
            Box::new(|inner| BoxModel::new(hooks::run(quiet()).layer(inner))),
        ),
        (
            "RunBudgetLayer",
            Box::new(|inner| BoxModel::new(budget.run().layer(inner))),
        ),
        (
            "DetachLayer",
            Box::new(|inner| BoxModel::new(DetachLayer::new().layer(inner))),
        ),
    ];
    for (name, run_layer) in &run_layers {
        let model = talker();
        let of_budget = *name == "RunBudgetLayer";
        let inner = |model: &BoxModel| match of_budget {
            true => charged(model),
            false => model.clone(),
        };
        let checked = BoxModel::new(model.clone());
        let agent = no_tools().layer(run_layer(inner(&checked)));
        assert_wrong(BoxModel::new(agent), &model, ["AgentLayer", name]).await;
        for plain in Plain::both() {
            let agent = no_tools().layer(run_layer(inner(&plain.model)));
            fails(BoxModel::new(agent), ["AgentLayer", name]).await;
            // An agent in the model's place has runs of its own.
            let nested = run_layer(BoxModel::new(no_tools().layer(inner(&plain.model))));
            answers(BoxModel::new(no_tools().layer(nested.clone()))).await;
            answers(nested).await;
        }
    }
}

#[tokio::test]
async fn a_session_in_a_models_place_fails() {
    let model = talker();
    let inner = MakeSession::new(BoxModel::new(no_tools().layer(model.clone())));
    let target = SessionTarget::new(ThreadId::new("inner"));
    let inner = inner.oneshot(target).await.unwrap();
    let agent = BoxModel::new(no_tools().layer(inner));
    assert_wrong(agent, &model, ["MakeSession", "AgentLayer"]).await;
}

#[tokio::test]
async fn hooks_and_budgets_are_checked_by_the_compiler_and_a_table() {
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let agent = Layers::new()
        .with(DetachLayer::new())
        .with(hooks::run(quiet()))
        .with(budget.run())
        .with(no_tools())
        .with(hooks::model(quiet()))
        .with(budget.model());
    agent.table().check().unwrap();
    let plain = Plain::both();
    for plain in plain {
        answers(BoxModel::new(agent.service(plain.model))).await;
    }
    let loops = || CapabilityTable::new().with(&no_tools());
    for wrong in [
        loops().with(&hooks::run(quiet())),
        loops().with(&DetachLayer::new()),
        CapabilityTable::new()
            .with(&hooks::model(quiet()))
            .with(&no_tools()),
        loops().and(CapabilityTable::new().of::<MakeSession<BoxModel>>()),
    ] {
        let errors = wrong.errors();
        assert!(
            matches!(errors[..], [CapabilityError::Inside { .. }]),
            "{errors:?}"
        );
    }
}

// ---- one inside of another of its kind ----

#[tokio::test]
async fn a_detach_layer_inside_of_another_fails_the_first_call() {
    let names = ["`DetachLayer` is inside", "another `DetachLayer`"];
    for plain in Plain::both() {
        let agent = ServiceBuilder::new()
            .layer(DetachLayer::new())
            .layer(hooks::run(quiet()))
            .layer(DetachLayer::new())
            .layer(no_tools())
            .service(plain.model.clone());
        fails(BoxModel::new(agent), names).await;
        assert_eq!(plain.calls(), 0);
    }
    let twice = CapabilityTable::new()
        .with(&DetachLayer::new())
        .with(&DetachLayer::new())
        .with(&no_tools());
    let errors = twice.errors();
    assert!(
        matches!(errors[..], [CapabilityError::Inside { .. }]),
        "{errors:?}"
    );
}

#[tokio::test]
async fn a_session_of_a_session_fails_the_first_turn() {
    async fn session(agent: BoxModel) -> Session<BoxModel> {
        let target = SessionTarget::new(ThreadId::new("t"));
        MakeSession::new(agent).oneshot(target).await.unwrap()
    }

    for plain in Plain::both() {
        let inner = session(BoxModel::new(no_tools().layer(plain.model.clone()))).await;
        let outer = session(BoxModel::new(inner.clone())).await;
        let error = outer.clone().oneshot(outer.user("hi")).await.unwrap_err();
        assert_names(&error, ["`MakeSession<", "another `MakeSession<"]);
        assert_eq!(plain.calls(), 0);
        // By itself it may be called.
        inner.clone().oneshot(inner.user("hi")).await.unwrap();
    }
    let twice = CapabilityTable::new()
        .of::<MakeSession<BoxModel>>()
        .of::<MakeSession<BoxModel>>();
    let errors = twice.errors();
    assert!(
        matches!(errors[..], [CapabilityError::Inside { .. }]),
        "{errors:?}"
    );
}

#[tokio::test]
async fn an_agent_in_an_agent_runs_the_tools_of_both() {
    for pace in Pace::ALL {
        let model = ScriptedModel::new()
            .paced(pace)
            .tool_call("look", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
            .text("Done.");
        let tools = |name: &'static str| ScriptedTools::new().paced(pace).answers(name, "ok");
        let (outer, inner) = (tools("pay"), tools("look"));
        let layers = Layers::new()
            .with(AgentLayer::new(outer.clone()))
            .with(AgentLayer::new(inner.clone()));
        layers.table().check().unwrap();
        let agent = layers.service(model.clone());
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "Done.");
        assert_eq!((outer.done(), inner.done()), (1, 1));
        assert_eq!(model.calls(), 3);
        let offered = model.request(0).tools;
        let names: Vec<_> = offered.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["pay", "look"]);
    }
}

#[tokio::test]
async fn an_agent_in_an_agent_has_tools_of_other_names() {
    let model = talker();
    let tools = || ScriptedTools::new().answers("look", "seen");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()))
        .layer(AgentLayer::new(tools()))
        .service(model.clone());
    assert_wrong(BoxModel::new(agent), &model, ["look", "look"]).await;
}

// ---- gates ----

#[tokio::test]
async fn gates_in_a_wrong_order_fail_every_run() {
    let steering = || Steering::new(1).gate();
    let output = || output::<u32>("value").gate();
    let judge = || OutputConstraint::new("judge", |_, _| async { Ok(Judgement::Accept) });
    let right = AgentLayer::new(ScriptedTools::new())
        .gate(steering())
        .gate(output())
        .gate(judge());
    let wrong = [
        (
            no_tools().gate(output()).gate(steering()),
            ["output", "steering"],
        ),
        (no_tools().gate(judge()).gate(output()), ["judge", "output"]),
        (
            no_tools().gate(judge()).gate(steering()),
            ["judge", "steering"],
        ),
    ];
    let model = ScriptedModel::new().text("1").repeat();
    for (agent, names) in wrong {
        let agent = BoxModel::new(agent.layer(model.clone()));
        fails(agent.clone(), names).await;
        fails(agent, names).await;
    }
    // Those of a run are asked before those of its agent.
    let of_run = |own: RunOverrides| ChatRequest::user("hi").with_overrides(own);
    let agent = no_tools().gate(steering()).layer(model.clone());
    let request = of_run(RunOverrides::new().step_gate(judge()));
    let error = agent.oneshot(request).await.unwrap_err();
    assert_names(&error, ["judge", "steering"]);
    assert_eq!(model.calls(), 0);
    let agent = no_tools().gate(output()).gate(judge()).layer(model.clone());
    let request = of_run(RunOverrides::new().step_gate(steering()));
    agent.oneshot(request).await.unwrap();
    let agent = BoxModel::new(right.layer(model));
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
}

// ---- sub-agents ----

#[tokio::test]
async fn a_session_as_a_tool_is_no_part_of_the_run_around_it() {
    let inner = MakeSession::new(BoxModel::new(no_tools().layer(talker())));
    let target = SessionTarget::new(ThreadId::new("inner"));
    let inner = inner.oneshot(target).await.unwrap();
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let inner = inner.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            let answer = inner.oneshot(request).await.unwrap();
            concentric_core::ToolOutcome::done(answer.text().await.unwrap())
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("Done.");
    let outer = BoxModel::new(AgentLayer::new(tools).layer(model));
    let outer = MakeSession::new(outer);
    let target = SessionTarget::new(ThreadId::new("outer"));
    let outer = outer.oneshot(target).await.unwrap();
    let answer = outer.clone().oneshot(outer.user("hi")).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(outer.history().len(), 3);
}
