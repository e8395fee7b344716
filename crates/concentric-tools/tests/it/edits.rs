//! Replies that a question accepts, and edits: what a person may do to a call that is asked about.

use crate::common::{Log, gate_fn, paced};
use crate::kit::{ANY_REPLY, Chance, Memory, Model, Ran, Scene, drive_with, env_or, number, told};
use concentric_core::{
    ErrorKind, Event, Interrupt, InterruptHub, InterruptId, Outcome, OutcomeSource, Reply,
    ReplyError, ReplyKind, ToolCall, ToolOutcome, ToolStatus, Turn, interrupt,
    interrupt::{ScopeCalls, ScopeLifetime},
    store::Tenant,
};
use concentric_tools::{Approval, Ask, Matcher, Toolset, Verdict, agent_tool};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const PAY: (&str, &str) = ("pay", r#"{"n":1}"#);

/// The calls of more than 100.
fn large() -> Matcher {
    Matcher::when(|call| {
        let arguments: Value = serde_json::from_str(call.arguments().as_str()).unwrap();
        arguments["n"].as_u64().unwrap() > 100
    })
}

/// A user is asked about payments, and a manager about large ones.
fn two_gates(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("pay", log))
        .gate(
            Approval::for_tools("pay")
                .replies(ANY_REPLY)
                .message(|_| "the user".to_owned()),
        )
        .gate(
            Approval::new()
                .ask(large())
                .replies(ANY_REPLY)
                .message(|_| "the manager".to_owned()),
        )
}

fn edit(id: &InterruptId, n: u32) -> Reply {
    Reply::approve_edited(id.clone(), json!({"n": n}))
}

// ---- edits ----

paced!(an_edit_that_another_gate_asks_about_asks_again);
async fn an_edit_that_another_gate_asks_about_asks_again() {
    for (answer, ran_with) in [("approve", Some("pay 200")), ("deny", None)] {
        let log = Log::default();
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&two_gates(&log)).await;
        let first = ran.ask("call-0-0");
        assert_eq!(first.message.as_deref(), Some("the user"));
        let reply = vec![edit(&first.id, 200)];
        let ran = scene
            .resume(&two_gates(&log), ran.state(), reply.clone())
            .await;
        assert!(log.lines().is_empty());
        let second = ran.ask("call-0-0");
        assert_eq!(second.id.as_str(), format!("{}#edit-1", first.id));
        assert_eq!(second.reason, interrupt::TOOL_CALL);
        assert_eq!(second.message.as_deref(), Some("the manager"));
        assert_eq!(second.metadata["arguments"], json!({"n": 200}));
        assert_eq!(second.metadata["edited"], true);
        // The first reply does not answer the second question.
        let again = scene.resume(&two_gates(&log), ran.state(), reply).await;
        assert_eq!(again.end.unwrap_err().code(), Some("unknown_interrupt"));
        let reply = match answer {
            "approve" => Reply::approve(second.id),
            _ => Reply::deny(second.id, "too much"),
        };
        let ran = scene
            .resume(&two_gates(&log), ran.state(), vec![reply])
            .await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(log.lines(), ran_with.into_iter().collect::<Vec<_>>());
    }
}

paced!(an_edit_that_no_other_gate_asks_about_runs);
async fn an_edit_that_no_other_gate_asks_about_runs() {
    let log = Log::default();
    let scene = Scene::round(vec![PAY, ("pay", r#"{"n":150}"#)]);
    let ran = scene.start(&two_gates(&log)).await;
    // Both gates asked about the second call, so both are answered by one reply.
    let replies = [("call-0-0", 7), ("call-0-1", 250)].map(|(call, n)| edit(&ran.ask(call).id, n));
    let ran = scene
        .resume(&two_gates(&log), ran.state(), replies.to_vec())
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["pay 7", "pay 250"]);
}

paced!(each_edit_of_an_edit_is_a_question_of_its_own);
async fn each_edit_of_an_edit_is_a_question_of_its_own() {
    let log = Log::default();
    // Each number is another person's.
    let tools = |log: &Log| {
        let mut tools = Toolset::new().tool(number("pay", log));
        for n in 1..6_u8 {
            let of =
                Matcher::when(move |call| call.arguments().as_str() == format!(r#"{{"n":{n}}}"#));
            tools = tools.gate(Approval::for_tools(of).replies(ANY_REPLY));
        }
        tools
    };
    let scene = Scene::round(vec![PAY]);
    let mut ran = scene.start(&tools(&log)).await;
    let mut ids = BTreeSet::new();
    for n in [2, 3, 2, 4, 5] {
        let asked = ran.ask("call-0-0");
        assert!(ids.insert(asked.id.clone()), "{} is asked twice", asked.id);
        let reply = vec![edit(&asked.id, n)];
        ran = scene.resume(&tools(&log), ran.state(), reply).await;
        assert_eq!(*ran.outcome(), Outcome::Interrupted, "{n}");
        assert!(log.lines().is_empty());
    }
    let last = ran.ask("call-0-0");
    assert!(last.id.as_str().ends_with("call-0-0#edit-5"), "{}", last.id);
    let reply = vec![Reply::approve(last.id)];
    let ran = scene.resume(&tools(&log), ran.state(), reply).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["pay 5"]);
}

paced!(a_call_id_that_looks_like_an_edit_is_none);
async fn a_call_id_that_looks_like_an_edit_is_none() {
    let log = Log::default();
    let scene = Scene::round(vec![("x#edit-7", "pay", r#"{"n":1}"#)]);
    let ran = scene.start(&two_gates(&log)).await;
    let first = ran.asked()[0].clone();
    let reply = vec![edit(&first.id, 200)];
    let ran = scene.resume(&two_gates(&log), ran.state(), reply).await;
    let second = ran.asked()[0].clone();
    assert_eq!(second.id.as_str(), format!("{}#edit-1", first.id));
}

paced!(watchers_see_both_questions_and_one_end);
async fn watchers_see_both_questions_and_one_end() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        two_gates(&log)
            .gate(
                Approval::for_tools("pay")
                    .replies(ANY_REPLY)
                    .on_approval(told(&watched)),
            )
            .notify_once(store.clone())
    };
    let scene = Scene::round(vec![PAY]);
    let ran = scene.start(&tools()).await;
    let reply = vec![edit(&ran.ask("call-0-0").id, 200)];
    let ran = scene.resume(&tools(), ran.state(), reply).await;
    let reply = vec![Reply::approve(ran.ask("call-0-0").id)];
    scene.resume(&tools(), ran.state(), reply).await;
    let lines = [
        "requested call-0-0",
        "requested call-0-0",
        r#"approved call-0-0 {"n":200}"#,
    ];
    assert_eq!(watched.lines(), lines);
}

paced!(an_edit_that_is_asked_about_is_not_remembered);
async fn an_edit_that_is_asked_about_is_not_remembered() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = || {
        Toolset::new()
            .tool(number("pay", &log))
            .gate(
                Approval::for_tools("pay")
                    .replies(ANY_REPLY)
                    .remember(store.clone()),
            )
            .gate(Approval::new().ask(large()))
    };
    let scene = Scene::new(vec![vec![PAY], vec![("pay", r#"{"n":200}"#)]]);
    let ran = scene.start(&tools()).await;
    let reply =
        edit(&ran.ask("call-0-0").id, 200).remembered(ScopeCalls::Tool, ScopeLifetime::Always);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let reply = Reply::deny(ran.ask("call-0-0").id, "no");
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    // The next call is asked about by both.
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    assert!(log.lines().is_empty());
}

/// Drives a live run; replies as `reply` says to each question.
async fn live_run(
    scene: &Scene,
    tools: &Toolset,
    live: &InterruptHub,
    mut reply: impl FnMut(&Interrupt) -> Reply,
) -> (Ran, Vec<Interrupt>) {
    let now = scene.world.now();
    let mut asked = Vec::new();
    let request = concentric_core::ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive_with(scene.model.agent(tools), request, |event| {
        if let Event::Custom(custom) = event
            && custom.name == "interrupt"
        {
            let ask: Interrupt = serde_json::from_value(custom.value.clone()).unwrap();
            live.reply(&Tenant::default(), reply(&ask), now).unwrap();
            asked.push(ask);
        }
    })
    .await;
    (ran, asked)
}

paced!(a_live_edit_is_asked_about_while_the_run_stays_open);
async fn a_live_edit_is_asked_about_while_the_run_stays_open() {
    for second_is_live in [true, false] {
        let (log, live) = (Log::default(), InterruptHub::new());
        let minute = Duration::from_secs(60);
        let manager = Approval::new().ask(large());
        let manager = match second_is_live {
            true => manager.live(&live, minute),
            false => manager,
        };
        let tools = Toolset::new()
            .tool(number("pay", &log))
            .gate(
                Approval::for_tools("pay")
                    .replies(ANY_REPLY)
                    .live(&live, minute),
            )
            .gate(manager);
        let scene = Scene::round(vec![PAY]);
        let (ran, asked) = live_run(&scene, &tools, &live, |ask| {
            match ask.metadata.contains_key("edited") {
                true => Reply::approve(ask.id.clone()),
                false => edit(&ask.id, 200),
            }
        })
        .await;
        if second_is_live {
            assert_eq!(asked.len(), 2);
            assert_eq!(*ran.outcome(), Outcome::Completed);
        } else {
            assert_eq!(asked.len(), 1);
            assert!(log.lines().is_empty());
            let reply = vec![Reply::approve(ran.ask("call-0-0").id)];
            scene.resume(&tools, ran.state(), reply).await;
        }
        assert_eq!(log.lines(), ["pay 200"]);
        assert!(live.interrupts(&Tenant::default()).is_empty());
    }
}

paced!(an_edit_that_does_not_fit_the_tool_leaves_the_question_open);
async fn an_edit_that_does_not_fit_the_tool_leaves_the_question_open() {
    let (log, watched) = (Log::default(), Log::default());
    let tools = || {
        let approval = Approval::for_tools("pay").replies(ANY_REPLY);
        Toolset::new()
            .tool(number("pay", &log))
            .gate(approval.on_approval(told(&watched)))
    };
    let scene = Scene::round(vec![PAY]);
    let ran = scene.start(&tools()).await;
    let id = ran.ask("call-0-0").id;
    for edited in [
        json!({"n": 700}),
        json!({"m": 7}),
        json!({}),
        json!({"n": 7, "$serde_json::private::RawValue": "{\"n\":8}"}),
    ] {
        let reply = vec![Reply::approve_edited(id.clone(), edited)];
        let refused = scene.resume(&tools(), ran.state(), reply).await;
        let error = refused.end.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let source = std::error::Error::source(&error).unwrap();
        let source = source.downcast_ref::<ReplyError>().unwrap();
        assert!(matches!(source, ReplyError::Malformed { id: of, .. } if *of == id));
    }
    assert!(log.lines().is_empty());
    assert_eq!(watched.lines(), ["requested call-0-0"]);
    let ran = scene
        .resume(&tools(), ran.state(), vec![edit(&id, 7)])
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["pay 7"]);
}

paced!(a_sub_agent_asks_again_after_an_edit_that_does_not_fit);
async fn a_sub_agent_asks_again_after_an_edit_that_does_not_fit() {
    for has_ledger in [false, true] {
        let (log, ledger) = (Log::default(), Memory::new());
        let approval = Approval::for_tools("pay").replies(ANY_REPLY);
        let inner = Toolset::new().tool(number("pay", &log)).gate(approval);
        let inner = Model::new(vec![vec![PAY]]).agent(&inner);
        let tools = Toolset::new().tool(agent_tool("helper", "", inner));
        let tools = match has_ledger {
            true => tools.ledger(ledger),
            false => tools,
        };
        let scene = Scene::round(vec![("helper", r#"{"task":"pay"}"#)]);
        let mut ran = scene.start(&tools).await;
        let id = ran.asked()[0].id.clone();
        for _ in 0..2 {
            let reply = vec![edit(&id, 700)];
            ran = scene.resume(&tools, ran.state(), reply).await;
            assert_eq!(*ran.outcome(), Outcome::Interrupted);
            assert_eq!(ran.asked()[0].id, id);
            assert_eq!(ran.asked()[0].reason, interrupt::TOOL_CALL);
            let told = ran.custom("approval-invalid");
            assert_eq!(told[0]["code"], "malformed_reply");
        }
        assert!(log.lines().is_empty());
        let ran = scene.resume(&tools, ran.state(), vec![edit(&id, 7)]).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(log.lines(), ["pay 7"]);
    }
}

// ---- which replies are accepted ----

paced!(a_reply_remembers_only_where_its_question_offers_it);
async fn a_reply_remembers_only_where_its_question_offers_it() {
    let (log, store) = (Log::default(), Memory::new());
    for offers in [false, true] {
        let approval = Approval::for_tools("pay");
        let approval = match offers {
            true => approval.remember(store.clone()),
            false => approval,
        };
        let tools = Toolset::new().tool(number("pay", &log)).gate(approval);
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools).await;
        let asked = ran.ask("call-0-0");
        let offered = asked.response_schema.as_ref().unwrap()["properties"].get("remember");
        assert_eq!(offered.is_some(), offers);
        for reply in [
            Reply::approve(asked.id.clone()),
            Reply::deny(asked.id, "no"),
        ] {
            let reply = reply.remembered(ScopeCalls::Arguments, ScopeLifetime::Run);
            let after = scene.resume(&tools, ran.state(), vec![reply]).await;
            match offers {
                true => assert_eq!(*after.outcome(), Outcome::Completed),
                false => {
                    let refused = after.end.unwrap_err();
                    assert_eq!(refused.code(), Some("malformed_reply"));
                }
            }
        }
    }
    assert_eq!(log.lines().len(), 1);
}

fn reply_of(kind: ReplyKind, id: &InterruptId) -> Reply {
    match kind {
        ReplyKind::Approve => Reply::approve(id.clone()),
        ReplyKind::Deny => Reply::deny(id.clone(), "no"),
        ReplyKind::Edit => edit(id, 7),
        _ => Reply::answer(id.clone(), "made up"),
    }
}

fn all_sets() -> impl Iterator<Item = Vec<ReplyKind>> {
    (0..16_u8).map(|set| {
        let kinds = ANY_REPLY.into_iter().enumerate();
        let kinds = kinds.filter(move |(at, _)| set & (1 << at) != 0);
        kinds.map(|(_, kind)| kind).collect()
    })
}

paced!(a_question_accepts_only_the_replies_of_its_approval);
async fn a_question_accepts_only_the_replies_of_its_approval() {
    for set in all_sets() {
        for kind in ANY_REPLY {
            let log = Log::default();
            let tools = || {
                Toolset::new()
                    .tool(number("pay", &log))
                    .gate(Approval::for_tools("pay").replies(set.clone()))
            };
            let scene = Scene::round(vec![PAY]);
            let ran = scene.start(&tools()).await;
            let asked = ran.ask("call-0-0");
            assert_eq!(asked.metadata["replies"], json!(set));
            let state = ran.state();
            let reply = vec![reply_of(kind, &asked.id)];
            let resumed = scene.resume(&tools(), state.clone(), reply).await;
            if set.contains(&kind) {
                assert_eq!(*resumed.outcome(), Outcome::Completed, "{set:?} {kind:?}");
                continue;
            }
            let error = resumed.end.unwrap_err();
            assert_eq!(error.code(), Some("malformed_reply"), "{set:?} {kind:?}");
            assert!(error.to_string().contains("does not accept"), "{error}");
            assert!(log.lines().is_empty());
            // The question is open still, and can always be given up.
            let cancel = vec![Reply::cancel(asked.id)];
            let ran = scene.resume(&tools(), state, cancel).await;
            assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
        }
    }
}

paced!(approve_and_deny_are_accepted_by_default);
async fn approve_and_deny_are_accepted_by_default() {
    let log = Log::default();
    for tools in [
        Toolset::new().gate(Approval::for_tools("pay")),
        Toolset::new().gate(gate_fn("asks", |_| Verdict::ask())),
        // Of two gates, what both accept.
        Toolset::new()
            .gate(Approval::for_tools("pay").replies(ANY_REPLY))
            .gate(gate_fn("asks", |_| Verdict::ask())),
    ] {
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools.tool(number("pay", &log))).await;
        let asked = ran.ask("call-0-0");
        assert_eq!(asked.metadata["replies"], json!(["approve", "deny"]));
        let schema = asked.response_schema.unwrap();
        let names: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["approved", "reason"]);
        assert!(!asked.metadata.contains_key("argumentsSchema"));
    }
    let asks = gate_fn("asks", |_: &ToolCall| {
        Verdict::Ask(Ask::default().replies([ReplyKind::Answer]))
    });
    let tools = Toolset::new().tool(number("pay", &log)).gate(asks);
    let ran = Scene::round(vec![PAY]).start(&tools).await;
    assert!(ran.ask("call-0-0").accepts(ReplyKind::Answer));
    assert!(!ran.ask("call-0-0").accepts(ReplyKind::Approve));
}

paced!(the_schema_of_a_question_fits_the_replies_it_accepts);
async fn the_schema_of_a_question_fits_the_replies_it_accepts() {
    let log = Log::default();
    for set in all_sets() {
        for remembers in [false, true] {
            let approval = Approval::for_tools("pay").replies(set.clone());
            let approval = match remembers {
                true => approval.remember(Memory::new()),
                false => approval,
            };
            let tools = Toolset::new().tool(number("pay", &log)).gate(approval);
            let asked = Scene::round(vec![PAY]).start(&tools).await.ask("call-0-0");
            let schema = asked.response_schema.clone().unwrap();
            let validator = jsonschema::validator_for(&schema).unwrap();
            for kind in ANY_REPLY {
                // An approval with an edit has what an approval has, and a field more.
                if kind == ReplyKind::Approve && set.contains(&ReplyKind::Edit) {
                    continue;
                }
                let payload = reply_of(kind, &asked.id).payload.unwrap();
                let accepted = set.contains(&kind);
                assert_eq!(
                    validator.is_valid(&payload),
                    accepted,
                    "{set:?} {kind:?} {schema}"
                );
            }
            let decides = set.iter().any(|kind| *kind != ReplyKind::Answer);
            assert_eq!(
                schema["properties"].get("remember").is_some(),
                remembers && decides
            );
            let of_arguments = asked.metadata.get("argumentsSchema");
            assert_eq!(of_arguments.is_some(), set.contains(&ReplyKind::Edit));
            if let Some(schema) = of_arguments {
                assert!(schema["properties"]["n"].is_object());
            }
        }
    }
}

paced!(what_an_older_version_asked_is_answered_as_the_gate_accepts_now);
async fn what_an_older_version_asked_is_answered_as_the_gate_accepts_now() {
    for (kind, status) in [
        (ReplyKind::Approve, ToolStatus::Done),
        (ReplyKind::Edit, ToolStatus::Denied),
        (ReplyKind::Answer, ToolStatus::Denied),
    ] {
        let log = Log::default();
        let tools = || {
            Toolset::new()
                .tool(number("pay", &log))
                .gate(Approval::for_tools("pay"))
        };
        let scene = Scene::round(vec![PAY]);
        let ran = scene.start(&tools()).await;
        // An older version stored neither the kinds of reply nor who asked.
        let mut state: Value = serde_json::from_str(&ran.state().to_json().unwrap()).unwrap();
        let round = state["stage"]["round"].as_object_mut().unwrap();
        let call = round.remove("calls").unwrap()[0].take();
        assert_eq!(call["by"], json!("gate"));
        round.insert(
            "slots".to_owned(),
            json!([{
                "call": call["call"],
                "refusal": null,
                "read_only": false,
                "state": {"waiting": call["on"]},
            }]),
        );
        state["version"] = json!(1);
        assert_eq!(remove(&mut state, "replies"), 1, "{state}");
        let json = state.to_string();
        let state = concentric_core::machine::RunState::from_json(json.as_bytes(), 1 << 20);
        let reply = vec![reply_of(kind, &ran.ask("call-0-0").id)];
        let ran = scene.resume(&tools(), state.unwrap(), reply).await;
        assert_eq!(ran.result("call-0-0").0, status, "{kind:?}");
        assert_eq!(log.lines().len(), usize::from(status == ToolStatus::Done));
    }
}

/// Removes all fields of that name; returns how many there were.
fn remove(value: &mut Value, name: &str) -> usize {
    match value {
        Value::Object(fields) => {
            let own = usize::from(fields.remove(name).is_some());
            own + fields
                .values_mut()
                .map(|it| remove(it, name))
                .sum::<usize>()
        }
        Value::Array(items) => items.iter_mut().map(|it| remove(it, name)).sum(),
        _ => 0,
    }
}

// ---- results that a person supplied ----

paced!(a_result_that_a_person_supplied_is_marked);
async fn a_result_that_a_person_supplied_is_marked() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(number("pay", &log))
            .gate(Approval::for_tools("pay").replies(ANY_REPLY))
    };
    let scene = Scene::round(vec![PAY, ("pay", r#"{"n":2}"#)]);
    let ran = scene.start(&tools()).await;
    let replies = vec![
        Reply::answer(ran.ask("call-0-0").id, json!({"paid": true})),
        Reply::approve(ran.ask("call-0-1").id),
    ];
    let ran = scene.resume(&tools(), ran.state(), replies).await;
    let outcomes = |turn: &Turn| -> Vec<ToolOutcome> {
        turn.results().iter().map(|it| it.outcome.clone()).collect()
    };
    let requests = scene.model.requests();
    let mut turns = requests.last().unwrap().transcript.iter();
    let outcomes = turns.find_map(|turn| Some(outcomes(turn)).filter(|it| !it.is_empty()));
    let outcomes = outcomes.unwrap();
    assert_eq!(outcomes[0].source, OutcomeSource::Person);
    let text = outcomes[0].content.text().into_owned();
    assert_eq!(text, crate::kit::by_person(r#"{"paid":true}"#));
    assert_eq!(outcomes[1].source, OutcomeSource::Executor);
    assert_eq!(log.lines(), ["pay 2"]);
    // It survives storage, and what was stored before is the executor's.
    let stored = serde_json::to_value(&outcomes[0]).unwrap();
    assert_eq!(stored["source"], "person");
    let read: ToolOutcome = serde_json::from_value(stored).unwrap();
    assert_eq!(read, outcomes[0]);
    let stored = serde_json::to_value(&outcomes[1]).unwrap();
    assert!(stored.get("source").is_none(), "{stored}");
    drop(ran);
}

// ---- random replies to random gates ----

/// A gate of the property below: what it says depends on the argument alone.
#[derive(Clone, Debug)]
struct RandomGate {
    asks: [bool; 8],
    denies: [bool; 8],
    accepts: Vec<ReplyKind>,
}

impl RandomGate {
    fn new(chance: &mut Chance) -> Self {
        let mut some = |of: usize| [(); 8].map(|()| chance.below(of) == 0);
        let (asks, denies) = (some(2), some(12));
        let accepts = ANY_REPLY.into_iter().filter(|_| chance.below(5) > 0);
        let accepts = accepts.collect();
        Self {
            asks,
            denies,
            accepts,
        }
    }
}

/// The argument of a call.
fn argument(text: &str) -> usize {
    let arguments: Value = serde_json::from_str(text).unwrap();
    usize::try_from(arguments["n"].as_u64().unwrap()).unwrap()
}

fn random_tools(log: &Log, gates: &[RandomGate]) -> Toolset {
    let mut tools = Toolset::new().tool(number("pay", log));
    for (at, gate) in gates.iter().cloned().enumerate() {
        tools = tools.gate(gate_fn(format!("gate {at}"), move |call: &ToolCall| {
            let n = argument(call.arguments().as_str());
            match (gate.denies[n], gate.asks[n]) {
                (true, _) => Verdict::deny("no"),
                (_, true) => Verdict::Ask(Ask::default().replies(gate.accepts.clone())),
                _ => Verdict::Pass,
            }
        }));
    }
    tools
}

/// Which gates ask about `n`; `None`, if one denies it.
fn askers(gates: &[RandomGate], n: usize) -> Option<BTreeSet<usize>> {
    let ask = |at: &usize| gates[*at].asks[n];
    let denied = gates.iter().any(|gate| gate.denies[n]);
    (!denied).then(|| (0..gates.len()).filter(ask).collect())
}

async fn check_random(seed: u64) {
    let mut chance = Chance::new(seed);
    let gates: Vec<_> = (0..1 + chance.below(3))
        .map(|_| RandomGate::new(&mut chance))
        .collect();
    let log = Log::default();
    let start = chance.below(8);
    let scene = Scene::round(vec![("pay", format!(r#"{{"n":{start}}}"#).as_str())]);
    let mut ran = scene.start(&random_tools(&log, &gates)).await;
    // What may run now: nothing, or this.
    let mut may_run = askers(&gates, start)
        .filter(BTreeSet::is_empty)
        .map(|_| start);
    for _ in 0..12 {
        if *ran.outcome() != Outcome::Interrupted {
            break;
        }
        assert!(log.lines().is_empty(), "seed {seed}: ran while asked about");
        let asked = ran.ask("call-0-0");
        let of = argument(&asked.metadata["arguments"].to_string());
        let to = chance.below(8);
        let id = match chance.below(10) {
            0 => InterruptId::new(format!("{}#edit-9", asked.id)),
            _ => asked.id.clone(),
        };
        let reply = match chance.below(7) {
            0 => Reply::approve(id),
            1 => Reply::deny(id, "no"),
            2 | 3 => edit(&id, u32::try_from(to).unwrap()),
            4 => Reply::answer(id, "made up"),
            5 => Reply::resolve(id, json!({"approved": "yes", "editedArgs": {"n": to}})),
            _ => Reply::resolve(id, json!({"approved": true, "editedArgs": {"n": "x"}})),
        };
        let replies = match chance.below(8) {
            0 => vec![reply.clone(), reply.clone()],
            _ => vec![reply.clone()],
        };
        let kind = reply.decision().ok().and_then(|decision| decision.kind());
        let fits = !matches!(&reply.payload, Some(it) if it["editedArgs"]["n"].is_string());
        let expected_accepted = asked.id == reply.interrupt_id
            && replies.len() == 1
            && fits
            && kind.is_some_and(|kind| asked.accepts(kind));
        let state = ran.state();
        let next = scene
            .resume(&random_tools(&log, &gates), state.clone(), replies)
            .await;
        if next.end.is_err() {
            assert!(!expected_accepted, "seed {seed}: refused {reply:?}");
            assert!(log.lines().is_empty(), "seed {seed}: a refused reply ran");
            continue;
        }
        assert!(expected_accepted, "seed {seed}: accepted {reply:?}");
        may_run = match (kind, &reply.payload) {
            (Some(ReplyKind::Approve), _) => askers(&gates, of).map(|_| of),
            (Some(ReplyKind::Edit), _) => {
                let before = askers(&gates, of).unwrap_or_default();
                askers(&gates, to)
                    .filter(|asks| asks.is_subset(&before))
                    .map(|_| to)
            }
            _ => None,
        };
        ran = next;
    }
    let lines = log.lines();
    let allowed: Vec<_> = may_run.iter().map(|n| format!("pay {n}")).collect();
    match *ran.outcome() {
        Outcome::Interrupted => assert!(lines.is_empty(), "seed {seed}: {lines:?}"),
        _ => assert_eq!(lines, allowed, "seed {seed}: {gates:?}"),
    }
}

paced!(no_unapproved_call_runs_whatever_is_replied);
async fn no_unapproved_call_runs_whatever_is_replied() {
    let first = env_or("CONCENTRIC_SEED", 1);
    for seed in first..first + env_or("CONCENTRIC_CASES", 2_000) {
        check_random(seed).await;
    }
}
