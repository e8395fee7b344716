//! Calls that have their outcome before they enter the layers: no layer sees one, and hooks observe
//! them only where that is asked for.

use crate::common::hooks::after_fn;
use crate::common::{Log, agent_in, ask, gate_fn, one, pace, paced, polled, tool};
use concentric_core::hooks::{self, Hooks};
use concentric_core::{
    BoxError, BoxTool, CancelReason, ChatRequest, Context, Error, Refusal, Reply, RunOverrides,
    Str, ToolCall, ToolOutcome, ToolStatus,
};
use concentric_layers::{NextTool, tool_from_fn};
use concentric_tools::{
    Approval, Decided, Gate, Matcher, NoArguments, ScopedExt, Tool, Toolset, Verdict,
};
use futures_util::StreamExt;
use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, ServiceExt, layer::layer_fn, service_fn};

type Cached = Arc<Mutex<HashMap<String, ToolOutcome>>>;

/// A cache as one writes it without a thought: by name, with whatever outcome there is.
fn cache(
    cached: &Cached,
) -> impl Layer<
    BoxTool,
    Service = impl concentric_core::ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    let cached = cached.clone();
    layer_fn(move |inner: BoxTool| {
        let cached = cached.clone();
        service_fn(move |call: ToolCall| {
            let (cached, inner) = (cached.clone(), inner.clone());
            async move {
                let name = call.name().to_string();
                let found = cached.lock().unwrap().get(&name).cloned();
                if let Some(outcome) = found {
                    return Ok::<_, Error>(outcome);
                }
                // A tick later, as a cache elsewhere.
                tokio::task::yield_now().await;
                pace().pass(&call.context).await;
                let outcome = inner.oneshot(call).await?;
                cached.lock().unwrap().insert(name, outcome.clone());
                Ok(outcome)
            }
        })
    })
}

async fn answers(_: ToolCall, _: NextTool) -> Result<ToolOutcome, Error> {
    Ok(ToolOutcome::done("paid"))
}

fn pay() -> Tool {
    tool("pay", "", |NoArguments {}| async { "paid" })
}

/// A toolset with a layer, by each way to add one; and the run's own.
fn ways<L>(layer: L) -> Vec<(&'static str, Toolset, RunOverrides)>
where
    L: Layer<BoxTool> + Clone + Send + Sync + 'static,
    L::Service:
        concentric_core::ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    let none = RunOverrides::new;
    let bare = || Toolset::new().tool(pay());
    vec![
        ("toolset", bare().layer(layer.clone()), none()),
        (
            "tool",
            Toolset::new().tool(pay().layer(layer.clone())),
            none(),
        ),
        (
            "scoped",
            bare().layer(layer.clone().scoped(Matcher::effects())),
            none(),
        ),
        (
            "beside hooks",
            bare()
                .hooks(after_fn("audit", |_, _, _| Ok(None)))
                .layer(layer.clone()),
            none(),
        ),
        ("run", bare(), none().tool_layer(layer)),
    ]
}

async fn run(tools: Toolset, own: RunOverrides) -> (ToolStatus, String) {
    let request = ChatRequest::user("hi").with_overrides(own);
    let answer = ask(request, tools, vec![vec![("pay", "{}")]]);
    let answer = answer.await.unwrap();
    let outcome = answer
        .transcript()
        .unwrap()
        .iter()
        .nth(1)
        .unwrap()
        .results()[0]
        .outcome
        .clone();
    (outcome.status, outcome.content.text().into_owned())
}

paced!(no_layer_overrules_a_denial);
async fn no_layer_overrules_a_denial() {
    for (way, tools, own) in ways(tool_from_fn(answers)) {
        let denies = tools.gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")));
        let denied = (ToolStatus::Denied, "not today".to_owned());
        assert_eq!(run(denies, own).await, denied, "{way}");
    }
}

struct DeniesLater;

impl Gate for DeniesLater {
    fn decide(&self, _: &ToolCall) -> Decided {
        Decided::Later(Box::pin(async {
            tokio::task::yield_now().await;
            Ok(Verdict::deny("not today"))
        }))
    }

    fn policy(&self) -> Str {
        "later".into()
    }
}

paced!(no_layer_overrules_a_gate_that_waits);
async fn no_layer_overrules_a_gate_that_waits() {
    for (way, tools, own) in ways(tool_from_fn(answers)) {
        let denies = tools.gate(DeniesLater);
        assert_eq!(run(denies, own).await.0, ToolStatus::Denied, "{way}");
    }
}

paced!(a_naive_cache_never_stores_a_denial);
async fn a_naive_cache_never_stores_a_denial() {
    let cached = Cached::default();
    for (way, tools, own) in ways(cache(&cached)) {
        let denied = tools
            .clone()
            .gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")));
        assert_eq!(
            run(denied, own.clone()).await.0,
            ToolStatus::Denied,
            "{way}"
        );
        assert!(cached.lock().unwrap().is_empty(), "{way}");
        assert_eq!(run(tools, own).await, (ToolStatus::Done, "paid".to_owned()));
        assert_eq!(cached.lock().unwrap().len(), 1, "{way}");
        cached.lock().unwrap().clear();
    }
}

paced!(a_naive_cache_never_answers_a_denied_call);
async fn a_naive_cache_never_answers_a_denied_call() {
    let cached = Cached::default();
    let done = ToolOutcome::done("paid before");
    cached.lock().unwrap().insert("pay".to_owned(), done);
    for (way, tools, own) in ways(cache(&cached)) {
        let denied = tools.gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")));
        assert_eq!(run(denied, own).await.0, ToolStatus::Denied, "{way}");
    }
}

paced!(no_layer_answers_for_calls_that_cannot_run);
async fn no_layer_answers_for_calls_that_cannot_run() {
    let tools = Toolset::new().tool(pay()).layer(tool_from_fn(answers));
    // Refused by the loop; unknown; invalid below a gate.
    let mut round = crate::common::round(&[("pay", "{}"), ("gone", "{}")]);
    round.calls[0].state.stage = concentric_core::call::CallStage::Rejected(Refusal::DuplicateId);
    let all: Vec<_> = tools.clone().oneshot(round).await.unwrap().collect().await;
    for event in all {
        let outcome = crate::common::settled(event.unwrap()).outcome;
        assert_eq!(outcome.status, ToolStatus::Failed);
    }
    let gated = tools.gate(gate_fn("all", |_: &ToolCall| Verdict::Pass));
    assert_eq!(one(&gated, "pay", "[").await.status, ToolStatus::Failed);
    assert_eq!(one(&gated, "pay", "{}").await, ToolOutcome::done("paid"));
}

paced!(no_layer_answers_for_calls_that_are_stopped);
async fn no_layer_answers_for_calls_that_are_stopped() {
    let tools = Toolset::new().tool(pay()).layer(tool_from_fn(answers));
    let context = Context::new();
    let round = crate::common::round_in(&context, &[("pay", "{}")]);
    context.cancel(CancelReason::User);
    let mut all: Vec<_> = tools.oneshot(round).await.unwrap().collect().await;
    let outcome = crate::common::settled(all.remove(0).unwrap()).outcome;
    assert_eq!(outcome.status, ToolStatus::Cancelled);
}

/// Records what it is told, and tries to change it.
struct Meddles(&'static str, Log, bool);

impl Hooks for Meddles {
    fn id(&self) -> &str {
        self.0
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        if self.2 {
            tokio::task::yield_now().await;
        }
        let settled = call.settled().is_some();
        self.1.add(format!(
            "{} {:?} {settled} {took:?}",
            self.0, outcome.status
        ));
        Ok(Some(ToolOutcome::done("paid").and_halt("enough")))
    }
}

paced!(hooks_observe_a_denial_and_cannot_change_it);
async fn hooks_observe_a_denial_and_cannot_change_it() {
    for waits in [false, true] {
        let log = Log::default();
        let hook = |name| hooks::tool(Arc::new(Meddles(name, log.clone(), waits)));
        let tools = Toolset::new()
            .tool(pay())
            .tool(tool("other", "", |NoArguments {}| async { "done" }))
            .gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")))
            .hooks(hook("outer"))
            .layer(hook("layer"))
            .hooks(hook("other").scoped("other"))
            .hooks(hook("inner").scoped("pay"));
        let own = RunOverrides::new().tool_hooks(hook("run"));
        let denied = (ToolStatus::Denied, "not today".to_owned());
        assert_eq!(run(tools, own).await, denied);
        // The innermost first, as for a call that ran.
        let expected = ["inner", "outer", "run"].map(|name| format!("{name} Denied true 0ns"));
        assert_eq!(log.lines(), expected);
    }
}

paced!(hooks_that_observe_are_hooks_on_calls_that_run);
async fn hooks_that_observe_are_hooks_on_calls_that_run() {
    let log = Log::default();
    let hook = hooks::tool(Arc::new(Meddles("hook", log.clone(), true)));
    let tools = Toolset::new()
        .tool(tool("pay", "", |NoArguments {}| async { "once" }))
        .hooks(hook);
    let outcome = one(&tools, "pay", "{}").await;
    assert_eq!(outcome.content.text(), "paid");
    assert!(log.lines()[0].starts_with("hook Done false"));
}

paced!(an_observer_that_panics_changes_nothing);
async fn an_observer_that_panics_changes_nothing() {
    let tools = Toolset::new()
        .tool(pay())
        .gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")))
        .hooks(after_fn("panics", |_, _, _| panic!("secret")));
    assert_eq!(
        one(&tools, "pay", "{}").await,
        ToolOutcome::denied("not today")
    );
}

struct Waits(Log);

impl Hooks for Waits {
    fn id(&self) -> &str {
        "waits"
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.0.add("after");
        pending().await
    }

    fn call_cancelled(&self, _: &ToolCall) {
        self.0.add("cancelled");
    }
}

paced!(an_observer_that_waits_ends_with_the_run);
async fn an_observer_that_waits_ends_with_the_run() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(pay())
        .gate(gate_fn("no", |_: &ToolCall| Verdict::deny("not today")))
        .hooks(hooks::tool(Arc::new(Waits(log.clone()))))
        .hooks(hooks::tool(Arc::new(Waits(log.clone()))));
    let context = Context::new();
    let script = vec![vec![("pay", "{}")]];
    let mut run = tokio_test::task::spawn(agent_in(context.clone(), tools, script));
    tokio_test::assert_pending!(polled!(run.poll()));
    // The inner one waits; the outer one has not been called.
    assert_eq!(log.lines(), ["after"]);
    context.cancel(CancelReason::User);
    let answer = tokio_test::assert_ready!(polled!(run.poll())).unwrap();
    assert_eq!(log.lines(), ["after", "cancelled"]);
    assert_eq!(crate::common::results(&answer).len(), 1);
}

paced!(a_person_who_denies_is_not_overruled_either);
async fn a_person_who_denies_is_not_overruled_either() {
    let tools = Toolset::new()
        .tool(pay())
        .gate(Approval::for_tools("pay"))
        .layer(tool_from_fn(answers));
    let scene = crate::kit::Scene::round(vec![("pay", "{}")]);
    let ran = scene.start(&tools).await;
    let reply = Reply::deny(ran.ask("call-0-0").id, "no");
    let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
}
