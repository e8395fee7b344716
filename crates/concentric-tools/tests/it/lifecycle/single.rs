//! Single calls: decided about without making them, or executed by the loop of another library.

use super::*;
use concentric_core::{
    BoxError, BoxTool, Error, RunOverrides, Suspension,
    hooks::{self, BeforeCall, Flow, Hooks, Interest},
    interrupt::SuspendedBy,
};
use concentric_tools::{Matcher, NoArguments, ScopedExt, ToolError, Verdict, gate_fn, tool};
use futures_util::FutureExt;
use tower::{ServiceExt, service_fn};

fn part(id: &str, name: &str, arguments: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), name, arguments)
}

fn message_of(calls: &[ToolCallPart]) -> Message {
    let parts = calls.iter().cloned().map(PartKind::ToolCall).map(Part::new);
    Message::new(Role::Assistant, parts.collect())
}

async fn execute(lifecycle: &ToolLifecycle, call: &ToolCallPart) -> Result<ToolOutcome, Error> {
    let call = ToolCall::new(call.clone(), Context::new());
    lifecycle.armed().oneshot(call).await
}

fn texts(end: RoundEnd) -> Vec<(ToolStatus, String)> {
    let (RoundEnd::Closed(round) | RoundEnd::Ended { round, .. }) = end else {
        panic!("{end:?}");
    };
    let outcomes = round.results().iter().map(|result| &result.outcome);
    outcomes
        .map(|outcome| (outcome.status, outcome.content.text().into_owned()))
        .collect()
}

// ---- calls that another loop executes ----

paced!(armed_calls_are_recorded_in_the_order_of_the_message);
async fn armed_calls_are_recorded_in_the_order_of_the_message() {
    let (log, world) = (Log::default(), World::new());
    let mut lifecycle = lifecycle(&world, gated(&log));
    let calls = [
        part("a", "write", r#"{"n":1}"#),
        part("b", "read", r#"{"n":2}"#),
        part("c", "none", "{}"),
    ];
    for call in calls.iter().rev() {
        execute(&lifecycle, call).await.unwrap();
    }
    let end = lifecycle.record_round(message_of(&calls)).unwrap();
    let texts = texts(end);
    assert_eq!(
        texts[..2].iter().map(|it| &*it.1).collect::<Vec<_>>(),
        ["write 1", "read 2"]
    );
    assert_eq!(texts[2].0, ToolStatus::Failed);
    assert_eq!(log.lines(), ["read 2", "write 1"]);
    assert_eq!(lifecycle.capture_turn().unwrap().len(), 2);
    // The next message is a round of its own.
    let call = part("a", "read", r#"{"n":3}"#);
    execute(&lifecycle, &call).await.unwrap();
    let end = lifecycle.record_round(message_of(&[call])).unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert_eq!(lifecycle.transcript().len(), 3);
}

paced!(a_suspended_armed_call_resumes_in_another_process);
async fn a_suspended_armed_call_resumes_in_another_process() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let calls = [
        part("a", "read", r#"{"n":1}"#),
        part("b", "refund", r#"{"n":2}"#),
        part("c", "write", r#"{"n":3}"#),
    ];
    execute(&here, &calls[0]).await.unwrap();
    let waits = execute(&here, &calls[1]).await.unwrap_err();
    assert_eq!(waits.suspension().unwrap().0.interrupts.len(), 1);
    // The other loop stops, so the third call is not made.
    let state = suspended(here.record_round(message_of(&calls)).unwrap());
    assert_eq!(log.lines(), ["read 1"]);
    assert!(here.record_round(message_of(&calls)).is_err());

    for (reply, expected) in [(true, "refund 2"), (false, "The call was denied: no")] {
        let log = Log::default();
        let mut there = ToolLifecycle::new(gated(&log)).with_context(world.context());
        let id = state.interrupts()[0].id.clone();
        let reply = match reply {
            true => Reply::approve(id),
            false => Reply::deny(id, "no"),
        };
        let end = there.resume(state.clone(), vec![reply]).await.unwrap();
        let texts = texts(end);
        let texts: Vec<_> = texts.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["read 1", expected, "write 3"]);
        assert!(!log.lines().contains(&"read 1".to_owned()), "it ran before");
    }
}

paced!(armed_calls_that_were_not_made_or_were_dropped_have_an_outcome);
async fn armed_calls_that_were_not_made_or_were_dropped_have_an_outcome() {
    let world = World::new();
    let hangs = tool("hangs", "", |NoArguments {}| std::future::pending::<&str>());
    let mut lifecycle = lifecycle(&world, Toolset::new().tool(hangs));
    let calls = [part("a", "hangs", "{}"), part("b", "hangs", "{}")];
    let running = execute(&lifecycle, &calls[0]);
    assert!(running.now_or_never().is_none());
    let end = lifecycle.record_round(message_of(&calls)).unwrap();
    let statuses = texts(end).into_iter().map(|(status, _)| status);
    assert_eq!(
        statuses.collect::<Vec<_>>(),
        [ToolStatus::Unknown, ToolStatus::Cancelled]
    );
}

paced!(the_events_and_the_halt_of_armed_calls_are_passed_on);
async fn the_events_and_the_halt_of_armed_calls_are_passed_on() {
    let (log, world) = (Log::default(), World::new());
    let stop = tool_with_context("stop", "", async |NoArguments {}, context: Context| {
        context.emit(Event::Custom(Box::new(CustomEvent::new("stops", json!(1)))))?;
        Ok::<_, ToolError>(ToolOutcome::done("stopped").and_halt("enough"))
    });
    let events = log.clone();
    let mut lifecycle = lifecycle(&world, Toolset::new().tool(stop)).on_event(move |event| {
        if let Event::Custom(event) = event {
            events.add(event.name.to_string());
        }
    });
    let call = part("a", "stop", "{}");
    let outcome = execute(&lifecycle, &call).await.unwrap();
    assert_eq!(outcome.halt.as_deref(), Some("enough"));
    let end = lifecycle.record_round(message_of(&[call])).unwrap();
    let RoundEnd::Ended { outcome, .. } = end else {
        panic!("{end:?}");
    };
    let reason = "enough".into();
    assert_eq!(outcome, Outcome::Halted { reason });
    assert_eq!(log.count("stops"), 1);
}

#[tokio::test]
async fn a_message_without_a_call_is_not_a_round() {
    let mut lifecycle = ToolLifecycle::new(Toolset::new());
    let error = lifecycle
        .record_round(Message::assistant("hi"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(lifecycle.push(Turn::user("hi")).is_ok());
}

// ---- calls that are not made ----

/// Sets the arguments of each call.
struct Edit(&'static str);

impl Hooks for Edit {
    fn id(&self) -> &str {
        "edit"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_CALL
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        call.set_arguments(self.0);
        Ok(Flow::Continue)
    }
}

/// Fails.
struct Broken;

impl Hooks for Broken {
    fn id(&self) -> &str {
        "broken"
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        Err("no connection".into())
    }
}

fn edited_by(hooks: impl Hooks, log: &Log) -> Toolset {
    let large = gate_fn("large", |call: &ToolCall| {
        match call.arguments().as_str().contains('9') {
            true => Verdict::deny("too large"),
            false => Verdict::Pass,
        }
    });
    let hooks = hooks::tool(Arc::new(hooks)).scoped("write");
    gated(log).gate(large).hooks(hooks)
}

async fn decide(tools: Toolset, name: &str, arguments: &str) -> (Flow<ToolOutcome>, String) {
    let mut call = part("a", name, arguments);
    let flow = ToolLifecycle::new(tools).before_call(&mut call).await;
    (flow.unwrap(), call.arguments.as_str().to_owned())
}

paced!(a_call_is_decided_about_and_not_made);
async fn a_call_is_decided_about_and_not_made() {
    let log = Log::default();
    let edit = |arguments| edited_by(Edit(arguments), &log);
    let (flow, arguments) = decide(edit(r#"{"n":2}"#), "write", r#"{"n":1}"#).await;
    assert_eq!((flow, &*arguments), (Flow::Continue, r#"{"n":2}"#));
    // The hooks apply to another tool.
    let (flow, arguments) = decide(edit(r#"{"n":2}"#), "read", r#"{"n":1}"#).await;
    assert_eq!((flow, &*arguments), (Flow::Continue, r#"{"n":1}"#));
    // The gates decide about the edited arguments, and the tool validates them.
    let (flow, _) = decide(edit(r#"{"n":9}"#), "write", r#"{"n":1}"#).await;
    assert_eq!(flow, Flow::deny("too large"));
    for (edited, arguments) in [(r#"{"n":2}"#, "{}"), ("{}", r#"{"n":1}"#)] {
        let (flow, _) = decide(edit(edited), "write", arguments).await;
        let Flow::Answer(outcome) = flow else {
            panic!("{flow:?}");
        };
        assert_eq!(outcome.status, ToolStatus::Failed);
    }
    let (flow, _) = decide(edit("{}"), "none", "{}").await;
    assert!(matches!(flow, Flow::Answer(outcome) if outcome.status == ToolStatus::Failed));
    let (flow, _) = decide(edited_by(Broken, &log), "write", r#"{"n":1}"#).await;
    assert!(matches!(flow, Flow::Answer(outcome) if outcome.status == ToolStatus::Failed));
    assert!(log.lines().is_empty());
}

paced!(a_decision_about_a_call_applies_what_the_run_adds);
async fn a_decision_about_a_call_applies_what_the_run_adds() {
    let log = Log::default();
    let lifecycle = ToolLifecycle::new(gated(&log));
    let mut call = part("a", "refund", r#"{"n":1}"#);
    let error = lifecycle.before_call(&mut call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert_eq!(error.suspension().unwrap().0.interrupts.len(), 1);

    let halt = gate_fn("halt", |_: &ToolCall| Verdict::halt("stop"));
    let own = RunOverrides::new().gate(halt);
    let lifecycle = ToolLifecycle::new(gated(&log)).with_overrides(own).unwrap();
    let flow = lifecycle
        .before_call(&mut part("a", "read", r#"{"n":1}"#))
        .await;
    assert_eq!(flow.unwrap(), Flow::halt("stop"));

    let own = RunOverrides::new().tool_hooks(hooks::tool(Arc::new(Edit(r#"{"n":7}"#))));
    let lifecycle = ToolLifecycle::new(gated(&log)).with_overrides(own).unwrap();
    let mut call = part("a", "read", r#"{"n":1}"#);
    assert_eq!(
        lifecycle.before_call(&mut call).await.unwrap(),
        Flow::Continue
    );
    assert_eq!(call.arguments.as_str(), r#"{"n":7}"#);
    assert!(log.lines().is_empty());
}

paced!(a_tool_that_suspends_itself_suspends_its_armed_call);
async fn a_tool_that_suspends_itself_suspends_its_armed_call() {
    let world = World::new();
    let spec = ToolSpec::new("ask", "", json!({"type": "object"}));
    let asks = Tool::new(
        spec,
        service_fn(async |call: ToolCall| match call.replies() {
            [] => {
                let id = call.context.interrupt_id().unwrap();
                let interrupt = concentric_core::Interrupt::new(id, "which");
                Err(Error::suspended(Suspension::new(vec![interrupt])))
            }
            _ => Ok(ToolOutcome::done("that one")),
        }),
    );
    let mut lifecycle = lifecycle(&world, Toolset::new().tool(asks));
    let call = part("a", "ask", "{}");
    assert!(execute(&lifecycle, &call).await.is_err());
    let state = suspended(lifecycle.record_round(message_of(&[call])).unwrap());
    let replies = vec![Reply::resolve(state.interrupts()[0].id.clone(), json!(1))];
    let end = lifecycle.resume(state, replies).await.unwrap();
    assert_eq!(texts(end), [(ToolStatus::Done, "that one".to_owned())]);
}

paced!(the_key_of_an_armed_call_is_the_same_after_a_resumption);
async fn the_key_of_an_armed_call_is_the_same_after_a_resumption() {
    let calls = ["a", "b", "c"].map(|id| part(id, "ask", "{}"));
    // In the order of the message, and in another one with positions.
    for order in [[0, 1, 2], [2, 0, 1]] {
        let (log, world) = (Log::default(), World::new());
        let keys = log.clone();
        let asks = Tool::new(
            ToolSpec::new("ask", "", json!({"type": "object"})),
            service_fn(move |call: ToolCall| {
                keys.add(call.context.idempotency_key().unwrap().to_string());
                let id = call.context.interrupt_id().unwrap();
                let waits = Suspension::new(vec![concentric_core::Interrupt::new(id, "which")]);
                std::future::ready(match call.replies() {
                    [] => Err(Error::suspended(waits)),
                    _ => Ok(ToolOutcome::done("that one")),
                })
            }),
        );
        let mut lifecycle = lifecycle(&world, Toolset::new().tool(asks));
        for position in order {
            let call = calls[position].clone();
            let context = match order {
                [0, ..] => Context::new(),
                _ => Context::new().at_call(&RoundCall::new(position, call.clone())),
            };
            let made = lifecycle.armed().oneshot(ToolCall::new(call, context));
            assert!(made.await.unwrap_err().suspension().is_some());
        }
        let state = suspended(lifecycle.record_round(message_of(&calls)).unwrap());
        let ids = state.interrupts().into_iter().map(|it| it.id.clone());
        let replies = ids.map(|id| Reply::resolve(id, json!(1))).collect();
        lifecycle.resume(state, replies).await.unwrap();
        let mut keys = log.lines();
        assert_eq!(keys.len(), 6, "{keys:?}");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 3, "{keys:?}");
    }
}

#[test]
fn an_invalid_toolset_decides_about_nothing() {
    let none = Vec::<&str>::new();
    let tools = Toolset::new().gate(Approval::for_tools(Matcher::from(none)));
    let lifecycle = ToolLifecycle::new(tools);
    let mut call = part("a", "read", "{}");
    let decided = lifecycle.before_call(&mut call).now_or_never();
    assert_eq!(
        decided.unwrap().unwrap_err().kind(),
        ErrorKind::Configuration
    );
}

paced!(a_state_with_named_overrides_is_refused);
async fn a_state_with_named_overrides_is_refused() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let calls = vec![("refund", r#"{"n":1}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let replies = vec![Reply::approve(state.interrupts()[0].id.clone())];
    let mut json: serde_json::Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
    json["overrides"] = json!(["strict"]);
    let named = RunState::from_json(json.to_string().as_bytes(), 1 << 20).unwrap();
    assert_eq!(named.overrides(), ["strict"]);
    let error = here.resume(named, replies.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(error.code(), Some("overrides"));
    assert!(log.lines().is_empty());
    // Nothing has changed.
    here.resume(state, replies).await.unwrap();
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(the_model_does_not_read_the_error_of_a_prepare_function);
async fn the_model_does_not_read_the_error_of_a_prepare_function() {
    let fail: [fn() -> ToolError; 3] = [
        || concentric_tools::fatal("no route to db.internal").into(),
        || ToolError::new("no route to db.internal").fatal(),
        || std::io::Error::other("no route to db.internal").into(),
    ];
    for fail in fail {
        let log = Log::default();
        let tools = gated(&log).prepare(move |_| async move { Err(fail()) });
        let (flow, _) = decide(tools, "read", r#"{"n":1}"#).await;
        let Flow::Answer(outcome) = flow else {
            panic!("{flow:?}");
        };
        assert_eq!(outcome.status, ToolStatus::Failed);
        assert_eq!(outcome.content.text(), "The tool failed.");
    }
}

paced!(armed_calls_of_two_messages_have_different_keys);
async fn armed_calls_of_two_messages_have_different_keys() {
    let world = World::new();
    let key = tool_with_context("key", "", async |NoArguments {}, context: Context| {
        format!("{} {}", context.step(), context.idempotency_key().unwrap())
    });
    let mut lifecycle = lifecycle(&world, Toolset::new().tool(key));
    let armed = lifecycle.armed();
    let call = part("a", "key", "{}");
    let mut keys = Vec::new();
    for step in 0..3 {
        let call_now = ToolCall::new(call.clone(), Context::new());
        armed.clone().oneshot(call_now).await.unwrap();
        let end = lifecycle.record_round(message_of(std::slice::from_ref(&call)));
        let RoundEnd::Closed(round) = end.unwrap() else {
            panic!("the round is closed");
        };
        let id = round.message().id.clone().unwrap();
        let key = round.results()[0].outcome.content.text().into_owned();
        assert_eq!(key, format!("{step} {id}/0/a"));
        keys.push(id);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3);
}

/// Asserts that neither an armed tool nor a decision accepts `call`.
async fn refused(lifecycle: &ToolLifecycle, armed: BoxTool, call: ToolCallPart) {
    let made = ToolCall::new(call.clone(), Context::new());
    let outcome = armed.oneshot(made).await.unwrap();
    let flow = lifecycle.before_call(&mut call.clone()).await.unwrap();
    assert_eq!(outcome.status, ToolStatus::Failed);
    assert_eq!(flow, Flow::Answer(outcome));
}

paced!(a_single_call_of_a_tool_that_is_not_offered_is_refused);
async fn a_single_call_of_a_tool_that_is_not_offered_is_refused() {
    let (log, world) = (Log::default(), World::new());
    let refunds = Skill::new("refunds", "Pays back.", "Look first.").unlocks("write");
    let (tools, skills) = Skills::new().skill(refunds).wrap(gated(&log)).unwrap();
    let mut hidden = lifecycle(&world, tools);
    let armed = hidden.armed();
    hidden.apply_skill_loads(&skills);
    let call = part("a", "write", r#"{"n":1}"#);
    refused(&hidden, armed, call.clone()).await;
    let end = hidden.record_round(message_of(&[call])).unwrap();
    assert_eq!(texts(end)[0].0, ToolStatus::Failed);

    let model = Model::silent();
    let agent = agent_tool("agent", "", model.agent(&gated(&log))).max_depth(1);
    let tools = Toolset::new().tool(agent).tool(number("read", &log));
    let deep = ToolLifecycle::new(tools).with_context(world.context().child().build());
    let call = part("a", "agent", r#"{"task":"x"}"#);
    refused(&deep, deep.armed(), call).await;
    assert!(model.requests().is_empty());
    assert!(log.lines().is_empty());
}

paced!(a_repeated_armed_call_is_executed_once);
async fn a_repeated_armed_call_is_executed_once() {
    let (log, world) = (Log::default(), World::new());
    let hangs = tool("hangs", "", |NoArguments {}| std::future::pending::<&str>());
    let mut lifecycle = lifecycle(&world, gated(&log).tool(hangs));
    let first = execute(&lifecycle, &part("a", "write", r#"{"n":1}"#)).await;
    let again = execute(&lifecycle, &part("a", "write", r#"{"n":2}"#)).await;
    assert_eq!(first.unwrap(), again.unwrap());
    assert_eq!(log.lines(), ["write 1"]);

    let call = part("b", "hangs", "{}");
    let mut running = Box::pin(execute(&lifecycle, &call));
    assert!(running.as_mut().now_or_never().is_none());
    let error = execute(&lifecycle, &call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    drop(running);

    // A call that was not started before its message was recorded is not a call of the next one.
    let late = ToolCall::new(part("c", "write", r#"{"n":3}"#), Context::new());
    let late = lifecycle.armed().oneshot(late);
    let mut armed = lifecycle.armed();
    let ready = ServiceExt::<ToolCall>::ready(&mut armed).await.unwrap();
    let call = ToolCall::new(part("c", "write", r#"{"n":3}"#), Context::new());
    let unpolled = tower::Service::call(ready, call);
    let end = lifecycle.record_round(message_of(&[part("b", "hangs", "{}")]));
    assert_eq!(texts(end.unwrap())[0].0, ToolStatus::Unknown);
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(log.lines(), ["write 1"]);
    late.await.unwrap();
    assert_eq!(log.lines(), ["write 1", "write 3"]);
}

paced!(a_change_by_a_hook_is_decided_about_as_in_a_round);
async fn a_change_by_a_hook_is_decided_about_as_in_a_round() {
    let log = Log::default();
    let prepared = Log::default();
    let prepares = prepared.clone();
    let tools = edited_by(Edit(r#"{"n":2}"#), &log).prepare(move |call| {
        prepares.add("prepared");
        async move { Ok(call.arguments().clone()) }
    });
    let (flow, arguments) = decide(tools.clone(), "write", r#"{"n":1}"#).await;
    assert_eq!((flow, &*arguments), (Flow::Continue, r#"{"n":2}"#));
    assert_eq!(prepared.count("prepared"), 1);

    // The permission of the original call does not cover the changed one.
    let tools = tools.gate(gate_fn("allow", |_: &ToolCall| Verdict::Allow));
    let mut call = part("a", "write", r#"{"n":1}"#);
    let error = ToolLifecycle::new(tools).before_call(&mut call).await;
    let error = error.unwrap_err();
    let (on, by) = error.suspension().unwrap();
    assert_eq!(by, SuspendedBy::Change);
    assert_eq!(on.interrupts.len(), 1);
    assert!(log.lines().is_empty());
}

paced!(an_error_of_the_toolset_fails_the_recorded_round);
async fn an_error_of_the_toolset_fails_the_recorded_round() {
    let (log, world) = (Log::default(), World::new());
    let breaks = tool("breaks", "", async |NoArguments {}| {
        Err::<(), _>(ToolError::new("broken").fatal())
    });
    let mut failing = lifecycle(&world, gated(&log).tool(breaks));
    let calls = [part("a", "breaks", "{}"), part("b", "read", r#"{"n":1}"#)];
    for call in &calls {
        let _ = execute(&failing, call).await;
    }
    let error = failing.record_round(message_of(&calls)).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Tool, "broken"));
    let round = failing.transcript().last().unwrap().as_round().unwrap();
    assert_eq!(round.results()[1].outcome.content.text(), "read 1");
    assert!(failing.record_round(message_of(&calls)).is_err());

    let none = Approval::for_tools(Matcher::from(Vec::<&str>::new()));
    let mut invalid = lifecycle(&world, gated(&log).gate(none));
    let call = part("a", "read", r#"{"n":1}"#);
    assert!(execute(&invalid, &call).await.is_err());
    let error = invalid.record_round(message_of(&[call])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}
