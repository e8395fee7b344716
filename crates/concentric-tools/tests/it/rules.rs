//! The rules of approvals: what they may name, what a run may change of them, and their settings.

use crate::common::{Log, pace, paced, tool};
use crate::kit::{ANY_REPLY, Memory, Model, Scene, number};
use concentric_core::{
    AgentLayer, CallId, ChatRequest, Context, Error, ErrorKind, Interrupt, InterruptHub, Outcome,
    Reply, ReplyKind, RunOverrides, Suspension, ToolCall, ToolCallPart, ToolOutcome, ToolSpec,
    ToolStatus,
    hooks::{self, Hooks},
    interrupt::{ScopeCalls, ScopeLifetime},
};
use concentric_test::ScriptedModel;
use concentric_tools::{
    Approval, ApprovalTokens, Digest, LazyTools, Matcher, NoArguments, ScopedExt, Skill, Skills,
    Tool, Toolset, ToolsetError, agent_tool, token::TokenKeys,
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{BoxError, Layer, ServiceExt, service_fn};

const PAY: (&str, &str) = ("pay", r#"{"n":1}"#);

fn of(log: &Log, approval: Approval) -> Toolset {
    Toolset::new().tool(number("pay", log)).gate(approval)
}

// ---- what a rule may name ----

paced!(a_rule_for_no_tool_fails_the_check_and_every_run);
async fn a_rule_for_no_tool_fails_the_check_and_every_run() {
    let log = Log::default();
    let none = || Vec::<&str>::new();
    let unknown = |name: &str| ToolsetError::UnknownTool(name.into());
    let empty = |rules: Approval| ToolsetError::EmptyRule(concentric_tools::Gate::policy(&rules));
    let and = Matcher::from("pay").and(none());
    for (approval, fault) in [
        (Approval::for_tools(none()), None),
        (Approval::for_tools("pay").allow(none()), None),
        (Approval::new().deny(none(), "no"), None),
        (Approval::for_tools(and), None),
        (Approval::for_tools(!Matcher::from(none())), None),
        (Approval::for_tools("pya"), Some("pya")),
        (Approval::for_tools(["pay", "pya"]), Some("pya")),
        (Approval::for_tools("p*ya"), Some("p*ya")),
        (Approval::for_tools("pay").allow("pya"), Some("pya")),
        (Approval::for_tools(Matcher::name("p*")), Some("p*")),
        (Approval::for_tools(!Matcher::name("pya")), Some("pya")),
    ] {
        let fault = match fault {
            Some(name) => unknown(name),
            None => empty(approval.clone()),
        };
        let tools = of(&log, approval);
        assert_eq!(tools.check(), Err(fault.clone()));
        let scene = Scene::round(vec![PAY]);
        let error = scene.start(&tools).await.end.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{fault}");
        assert!(scene.model.requests().is_empty(), "the model is not called");
        assert!(log.lines().is_empty());
    }
}

struct Nothing;

impl Hooks for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }
}

paced!(hooks_for_no_tool_fail_the_check_and_every_run);
async fn hooks_for_no_tool_fail_the_check_and_every_run() {
    let log = Log::default();
    let hooks = |matcher: &Matcher| hooks::tool(Arc::new(Nothing)).scoped(matcher.clone());
    let unknown = |name: &str| ToolsetError::UnknownTool(name.into());
    let none = Matcher::from(Vec::<&str>::new());
    for (matcher, fault) in [
        (none.clone(), ToolsetError::EmptyRule("none".into())),
        (Matcher::from(["pay", "pya"]), unknown("pya")),
        (Matcher::from("p*ya"), unknown("p*ya")),
        (Matcher::regex("^a|^y").unwrap(), unknown("^a|^y")),
    ] {
        let tools = Toolset::new().tool(number("pay", &log));
        let hooked = tools.clone().hooks(hooks(&matcher));
        assert_eq!(hooked.check(), Err(fault.clone()));
        let scene = Scene::round(vec![PAY]);
        assert!(scene.start(&hooked).await.end.is_err());
        assert!(scene.model.requests().is_empty(), "the model is not called");

        // As a plugin, and for one run.
        let model = ScriptedModel::new().text("hi").repeat();
        let agent = AgentLayer::new(tools.clone()).with(Nothing.scoped(matcher.clone()));
        let failed = agent
            .layer(model.clone())
            .oneshot(ChatRequest::user("hi"))
            .await;
        assert_eq!(
            failed.unwrap_err().to_string(),
            format!("configuration: {fault}")
        );
        let own = RunOverrides::new().tool_hooks(hooks(&matcher));
        let request = ChatRequest::user("hi").with_overrides(own);
        let failed = AgentLayer::new(tools)
            .layer(model.clone())
            .oneshot(request)
            .await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Configuration);
        assert_eq!(model.calls(), 0);
    }
    let tools = Toolset::new().tool(number("pay", &log));
    for matcher in ["pay", "p*", "*"].map(Matcher::from) {
        assert_eq!(tools.clone().hooks(hooks(&matcher)).check(), Ok(()));
    }
    let matcher = Matcher::regex("^p").unwrap();
    assert_eq!(tools.hooks(hooks(&matcher)).check(), Ok(()));
}

#[test]
fn a_regular_expression_is_less_exact_than_a_name() {
    let call = |name: &str| {
        let part = ToolCallPart::new(CallId::new("a"), name, "{}");
        ToolCall::new(part, Context::new())
    };
    let approval = Approval::for_tools(Matcher::regex("^p").unwrap()).allow("pay");
    let verdict = |name: &str| match concentric_tools::Gate::decide(&approval, &call(name)) {
        concentric_tools::Decided::Now(verdict) => verdict.as_str(),
        later @ concentric_tools::Decided::Later(_) => panic!("{later:?}"),
    };
    assert_eq!(
        ["pay", "print", "apay"].map(verdict),
        ["allow", "ask", "pass"]
    );
    let error = Matcher::regex("(").unwrap_err();
    assert!(matches!(error, ToolsetError::InvalidPattern { pattern, .. } if pattern == "("));
}

#[test]
fn a_rule_for_a_tool_that_is_there_passes_the_check() {
    let log = Log::default();
    for approval in [
        Approval::new(),
        Approval::for_tools("pay"),
        Approval::for_tools("p*"),
        Approval::for_tools("*"),
        Approval::for_tools(Matcher::effects().and(!Matcher::group("none"))),
        Approval::for_tools("pya").names_inner_tools(),
    ] {
        assert_eq!(of(&log, approval).check(), Ok(()));
    }
    // What skills and lazy tools bring is in the toolset.
    let hidden = || tool("hidden", "", |NoArguments {}| async { "" });
    let skills = Skills::new().skill(Skill::new("one", "x", "x").tool(hidden()));
    let approval = Approval::for_tools(["hidden", "load_skill"]);
    let (tools, _) = skills.wrap(of(&log, approval)).unwrap();
    assert_eq!(tools.check(), Ok(()));
    let tools = of(&log, Approval::for_tools(["hidden", "find_tools"]));
    let (tools, _) = LazyTools::new("hidden").wrap(tools.tool(hidden()));
    assert_eq!(tools.check(), Ok(()));
    // The name may be that of a tool of the agent, whose calls these gates decide about.
    let agent = Model::silent().agent(&Toolset::new());
    let tools = of(&log, Approval::for_tools("theirs")).tool(agent_tool("agent", "", agent));
    assert_eq!(tools.check(), Ok(()));
}

paced!(an_empty_rule_of_a_run_fails_the_run);
async fn an_empty_rule_of_a_run_fails_the_run() {
    let log = Log::default();
    let scene = Scene::round(vec![PAY]);
    let own = RunOverrides::new().gate(Approval::for_tools(Vec::<&str>::new()));
    let ran = scene.start_with(own, &of(&log, Approval::new())).await;
    assert_eq!(ran.end.unwrap_err().kind(), ErrorKind::Configuration);
    assert!(scene.model.requests().is_empty());
}

// ---- the rules of one run ----

paced!(a_run_makes_the_rules_of_its_agent_stricter_only);
async fn a_run_makes_the_rules_of_its_agent_stricter_only() {
    use Outcome::{Completed, Interrupted};
    let none = Approval::new;
    let asks = || Approval::for_tools("pay");
    let allows = || Approval::new().allow("pay");
    let denies = || Approval::new().deny("*", "no");
    for (agent, run, outcome, ran_with) in [
        (none(), asks(), Interrupted, 0),
        (allows(), asks(), Interrupted, 0),
        // Less exact, and stricter all the same.
        (allows(), Approval::for_tools("*"), Interrupted, 0),
        (asks(), allows(), Interrupted, 0),
        (asks(), none(), Interrupted, 0),
        (asks(), denies(), Completed, 0),
        (denies(), allows(), Completed, 0),
        (none(), allows(), Completed, 1),
        (asks().runs_may_allow(), allows(), Completed, 1),
        (asks().runs_may_allow(), none(), Interrupted, 0),
        (allows().runs_may_allow(), asks(), Interrupted, 0),
        (denies().runs_may_allow(), allows(), Completed, 0),
        // Less exact than what it would loosen.
        (
            asks().runs_may_allow(),
            Approval::new().allow("*"),
            Interrupted,
            0,
        ),
        // A matcher that fails is not loosened.
        (
            Approval::for_tools(Matcher::try_when(|_| Err("gone".into()))).runs_may_allow(),
            allows(),
            Interrupted,
            0,
        ),
    ] {
        let case = format!("{agent:?} {run:?}");
        let log = Log::default();
        let scene = Scene::round(vec![PAY]);
        let own = RunOverrides::new().gate(run);
        let ran = scene.start_with(own, &of(&log, agent)).await;
        assert_eq!(*ran.outcome(), outcome, "{case}");
        assert_eq!(log.lines().len(), ran_with, "{case}");
    }
}

paced!(what_a_run_remembers_does_not_loosen_its_agent);
async fn what_a_run_remembers_does_not_loosen_its_agent() {
    let (log, store) = (Log::default(), Memory::new());
    let scene = Scene::new(vec![vec![PAY], vec![PAY]]);
    let own = || RunOverrides::new().gate(Approval::for_tools("pay").remember(store.clone()));
    let tools = of(&log, Approval::for_tools("pay"));
    let ran = scene.start_with(own(), &tools).await;
    let reply =
        Reply::approve(ran.ask("call-0-0").id).remembered(ScopeCalls::Tool, ScopeLifetime::Always);
    let ran = scene
        .resume_with(own(), &tools, ran.state(), vec![reply])
        .await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted, "it is asked again");
    assert_eq!(log.lines(), ["pay 1"]);
}

paced!(a_question_of_run_and_agent_has_the_stricter_limits);
async fn a_question_of_run_and_agent_has_the_stricter_limits() {
    let log = Log::default();
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let scene = Scene::round(vec![PAY]);
    let own = Approval::for_tools("pay")
        .message(|_| "the run's".to_owned())
        .expires_after(minutes(60))
        .replies(ANY_REPLY);
    let agent = Approval::for_tools("pay").expires_after(minutes(1));
    let asked = scene
        .start_with(RunOverrides::new().gate(own), &of(&log, agent))
        .await
        .ask("call-0-0");
    assert_eq!(asked.message.as_deref(), Some("the run's"));
    assert_eq!(asked.expires_at, Some(scene.world.now() + minutes(1)));
    assert_eq!(asked.metadata["replies"], json!(["approve", "deny"]));
}

// ---- whose the state of a suspension is ----

paced!(a_tool_keeps_a_state_that_looks_like_a_gates);
async fn a_tool_keeps_a_state_that_looks_like_a_gates() {
    let digest = Digest::of_fields("x", &[]).to_string();
    let state = json!({
        "why": "gate", "arguments": r#"{"n":9}"#, "bound": "no",
        "definition": digest, "policy": digest,
    });
    for gated in [false, true] {
        let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (of_tool, state_of) = (Arc::clone(&seen), state.clone());
        let pay = service_fn(move |call: ToolCall| {
            let (seen, state) = (Arc::clone(&of_tool), state_of.clone());
            async move {
                pace().pass(&call.context).await;
                let Some(resume) = call.resumed() else {
                    let asks = Interrupt::new(call.context.interrupt_id().unwrap(), "address");
                    let pending = Suspension::new(vec![asks]).with_state(state);
                    return Err(BoxError::from(Error::suspended(pending)));
                };
                seen.lock()
                    .unwrap()
                    .push(Value::clone(resume.on.state.as_ref().unwrap()));
                Ok(ToolOutcome::done("paid"))
            }
        });
        let spec = ToolSpec::new("pay", "", json!({"type": "object"}));
        let tools = Toolset::new().tool(Tool::new(spec, pay));
        let tools = match gated {
            true => tools.gate(Approval::new().allow("pay")),
            false => tools,
        };
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools).await;
        let reply = Reply::resolve(ran.asked()[0].id.clone(), json!("Zug"));
        let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
        assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "paid".into()));
        assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&state));
    }
}

// ---- settings ----

paced!(expiry_takes_zero_one_and_the_maximum);
async fn expiry_takes_zero_one_and_the_maximum() {
    for (after, approvable) in [
        (Duration::ZERO, false),
        (Duration::from_millis(1), true),
        (Duration::MAX, true),
    ] {
        let log = Log::default();
        let tools = of(&log, Approval::for_tools("pay").expires_after(after));
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools).await;
        let (asked, state) = (ran.ask("call-0-0"), ran.state());
        if after == Duration::MAX {
            assert_eq!(asked.expires_at, None, "no clock can tell the time");
        }
        let reply = vec![Reply::approve(asked.id.clone())];
        let approved = scene.resume(&tools, state.clone(), reply).await;
        match approved.end {
            Ok(_) => assert!(approvable),
            Err(error) => {
                assert!(!approvable);
                assert_eq!(error.code(), Some("expired"));
                let deny = vec![Reply::deny(asked.id, "no")];
                let ran = scene.resume(&tools, state, deny).await;
                assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
            }
        }
    }
}

paced!(token_lifetimes_take_zero_one_and_the_maximum);
async fn token_lifetimes_take_zero_one_and_the_maximum() {
    let times = [Duration::ZERO, Duration::from_millis(1), Duration::MAX];
    for longest in times {
        for lifetime in times {
            for skew in times {
                let log = Log::default();
                let keys = TokenKeys::new("k", vec![7; 32]).unwrap();
                let keys = keys.max_lifetime(longest).max_skew(skew);
                let tokens = ApprovalTokens::new(keys, "here", Memory::new()).lifetime(lifetime);
                let tools = of(&log, Approval::for_tools("pay")).tokens(tokens);
                let scene = Scene::round(vec![PAY]);
                let ran = scene.start(&tools).await;
                let asked = ran.ask("call-0-0");
                let (state, counts) = (ran.state(), !longest.is_zero() && !lifetime.is_zero());
                let token = asked.metadata.get("token").and_then(Value::as_str);
                assert_eq!(token.is_some(), counts, "{longest:?} {lifetime:?} {skew:?}");
                let Some(token) = token else { continue };
                let request = concentric_core::ChatRequest::resume_history(
                    state.transcript().clone(),
                    state.open_round().unwrap(),
                    vec![Reply::approve(asked.id).with_token(token)],
                );
                let request = request.with_context(scene.world.context());
                let ran = crate::kit::drive(scene.model.agent(&tools), request).await;
                assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
            }
        }
    }
}

paced!(a_live_question_takes_zero_and_the_maximum);
async fn a_live_question_takes_zero_and_the_maximum() {
    for (timeout, status) in [
        (Duration::ZERO, ToolStatus::Denied),
        (Duration::MAX, ToolStatus::Done),
    ] {
        let (log, live) = (Log::default(), InterruptHub::new());
        let tools = of(&log, Approval::for_tools("pay").live(&live, timeout));
        let context = Context::new();
        let now = context.now();
        let request = concentric_core::ChatRequest::user("go").with_context(context);
        let agent = Scene::round(vec![PAY]).model.agent(&tools);
        let ran = crate::kit::drive_with(agent, request, |event| {
            if let concentric_core::Event::Custom(custom) = event
                && custom.name == "interrupt"
                && timeout == Duration::MAX
            {
                let ask: Interrupt = serde_json::from_value(custom.value.clone()).unwrap();
                let tenant = concentric_core::store::Tenant::default();
                live.reply(&tenant, Reply::approve(ask.id), now).unwrap();
            }
        })
        .await;
        assert_eq!(ran.result("call-0-0").0, status, "{timeout:?}");
    }
}

paced!(what_may_be_remembered_takes_the_least_and_the_most);
async fn what_may_be_remembered_takes_the_least_and_the_most() {
    for (what, span, accepts_most) in [
        (ScopeCalls::Arguments, ScopeLifetime::Run, false),
        (ScopeCalls::Tool, ScopeLifetime::Always, true),
    ] {
        let log = Log::default();
        let approval = Approval::for_tools("pay")
            .remember(Memory::new())
            .remember_at_most(what, span);
        let tools = of(&log, approval);
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools).await;
        let asked = ran.ask("call-0-0");
        for (what, span, accepted) in [
            (ScopeCalls::Arguments, ScopeLifetime::Run, true),
            (ScopeCalls::Tool, ScopeLifetime::Always, accepts_most),
        ] {
            let reply = Reply::approve(asked.id.clone()).remembered(what, span);
            assert_eq!(asked.check(&reply, scene.world.now()).is_ok(), accepted);
        }
    }
}

paced!(an_empty_list_of_replies_leaves_the_cancellation);
async fn an_empty_list_of_replies_leaves_the_cancellation() {
    let log = Log::default();
    let tools = of(&log, Approval::for_tools("pay").replies([]));
    let scene = Scene::round(vec![PAY]);
    let ran = scene.start(&tools).await;
    let asked = ran.ask("call-0-0");
    let refused = [
        Reply::approve(asked.id.clone()),
        Reply::deny(asked.id.clone(), "no"),
    ];
    assert!(
        refused
            .iter()
            .all(|reply| asked.check(reply, scene.world.now()).is_err())
    );
    assert!(!asked.accepts(ReplyKind::Approve));
    let ran = scene
        .resume(&tools, ran.state(), vec![Reply::cancel(asked.id)])
        .await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
}

paced!(a_search_finds_at_least_one_tool_and_at_most_all);
async fn a_search_finds_at_least_one_tool_and_at_most_all() {
    for (most, found) in [(0, 1), (1, 1), (usize::MAX, 3)] {
        let tools = ["file_a", "file_b", "file_c"]
            .map(|name| tool(name, "", |NoArguments {}| async { "" }));
        let lazy = LazyTools::new("file_*").max_results(most);
        let (tools, _) = lazy.wrap(Toolset::new().tools(tools));
        let scene = Scene::round(vec![("find_tools", r#"{"query":"file"}"#)]);
        let ran = scene.start(&tools).await;
        let (_, text) = ran.result("call-0-0");
        assert_eq!(text.matches("\n- file_").count(), found, "{text}");
    }
}
