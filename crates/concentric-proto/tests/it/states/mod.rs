//! Stored run states: which are read, and which are rejected.
//!
//! `golden/machine_state_v1_*.json` contains states of version 1. A file of a released version
//! never changes, because applications have stored such states.
//!
//! A failing case prints its seed, which is stored in `states/modified.proptest-regressions`.

mod modified;

use crate::v1;
use concentric_proto::{
    Annotations, CallId, ChatOptions, Event, Executor, Finish, FinishReason, Interrupt,
    InterruptId, Message, MessageId, OpenRound, Outcome, Part, PartKind, ProviderData, Reply, Role,
    Round, Suspension, System, SystemSegment, ToolCallPart, ToolOutcome, ToolResult, ToolSpec,
    ToolSpecs, Transcript, Turn, Usage,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState, StateError},
    run_state::RunEdits,
};
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

/// The version that the library writes.
const VERSION: u16 = 2;

const MAX: usize = 1 << 20;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)
}

fn rules() -> RunLimits {
    let mut rules = RunLimits::default();
    rules.resumes = true;
    rules.calls_per_round = Some(8);
    rules.calls_per_tool = vec![("pay".into(), 8)];
    rules
}

fn read(json: &str) -> Result<RunState, StateError> {
    RunState::from_json(json.as_bytes(), MAX)
}

// ---- states ----

fn start(tools: &[&'static str]) -> ModelStart {
    let mut start = ModelStart::new(MessageId::new("msg_2"));
    start.tools = ToolSpecs::new(tools.iter().map(|name| {
        let mut spec = ToolSpec::new(*name, "", json!({"type": "object"}));
        if *name == "search" {
            spec.annotations = Annotations::read_only();
        }
        Arc::new(spec)
    }));
    start.client_tools = vec!["locate".into()].into();
    start
}

fn call(id: &str, name: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), name, r#"{"eur": 5}"#)
}

/// A conversation with one entry of each kind.
fn transcript() -> Transcript {
    let mut transcript = Transcript::new();
    transcript.push_user("Pay them.");
    let search = call("call_0", "search").with_provider_id(Some("fc_1".into()));
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::new(PartKind::Reasoning("Whom?".into())),
            Part::new(PartKind::ToolCall(search)),
        ],
    );
    let found = ToolOutcome::done(vec![Part::new(PartKind::Text("them".into()))]);
    let found = ToolResult::new(
        CallId::new("call_0"),
        "search",
        found.with_data(json!({"n": 1.5})),
    );
    transcript.push(Round::new(message, vec![found]).unwrap());
    transcript.push(Turn::message(Message::assistant("I know whom.")).unwrap());
    transcript
}

/// A machine that has handed out these calls.
fn round_of(calls: &[(&str, &str)]) -> Machine {
    let mut machine = Machine::new(transcript(), rules());
    assert!(matches!(machine.action(), Some(Action::CallModel { .. })));
    machine.input(Input::ModelStarted(start(&["pay", "search", "locate"])));
    machine.input(Input::ModelEvent(Event::text("I will pay.")));
    for (id, name) in calls {
        machine.input(Input::ModelEvent(Event::tool_call(call(id, name))));
    }
    machine.input(Input::ModelEvent(Event::finish(
        FinishReason::ToolCalls,
        Usage::new(10, 2),
    )));
    drain(&mut machine);
    machine
}

/// Takes all pending actions, and returns the finish if the run has ended.
fn drain(machine: &mut Machine) -> Option<Finish> {
    let mut finish = None;
    while let Some(action) = machine.action() {
        if let Action::Emit(Event::Finish(ended)) = action {
            finish = Some(*ended);
        }
    }
    finish
}

fn settle(machine: &mut Machine, index: usize, outcome: ToolOutcome) {
    machine.input(Input::Settled { index, outcome });
}

fn wait(machine: &mut Machine, index: usize, on: Suspension) {
    let (on, by) = (Box::new(on), SuspendedBy::Gate);
    machine.input(Input::Suspended { index, on, by });
}

fn interrupted(mut machine: Machine) -> RunState {
    machine.input(Input::RoundEnded);
    let finish = drain(&mut machine).unwrap();
    assert_eq!(finish.outcome, Outcome::Interrupted);
    *finish.state.unwrap()
}

fn asked(position: usize, call: &str) -> Interrupt {
    let id = InterruptId::new(format!("msg_2/{position}/{call}"));
    Interrupt::new(id, interrupt::TOOL_CALL)
        .about(CallId::new(call))
        .with_message("May I pay?")
        .with_response_schema(json!({"type": "object"}))
        .until(SystemTime::UNIX_EPOCH + Duration::from_millis(1_900_000_000_123))
        .with_metadata("tool", "pay")
}

/// A round with one suspended call and one call of each other kind.
fn waiting() -> RunState {
    let mut machine = round_of(&[
        ("call_1", "pay"),
        ("call_2", "pay"),
        ("call_3", "search"),
        ("call_4", "locate"),
        ("call_5", "gone"),
    ]);
    let second = Interrupt::new(InterruptId::new("msg_2/0/call_1#2"), "choice");
    let pending = Suspension::new(vec![asked(0, "call_1"), second]);
    wait(
        &mut machine,
        0,
        pending.with_state(json!({"digest": "abc"})).together(),
    );
    wait(&mut machine, 1, Suspension::held());
    settle(
        &mut machine,
        2,
        ToolOutcome::done("found")
            .with_data(json!([1]))
            .free_of_charge(),
    );
    settle(
        &mut machine,
        3,
        ToolOutcome::failed("There is no tool `gone`."),
    );
    interrupted(machine)
}

/// A round that was resumed by a reply when its process ended.
fn running() -> RunState {
    let mut machine = round_of(&[("call_1", "pay"), ("call_2", "pay"), ("call_3", "search")]);
    wait(&mut machine, 0, Suspension::new(vec![asked(0, "call_1")]));
    settle(&mut machine, 1, ToolOutcome::done("paid"));
    settle(&mut machine, 2, ToolOutcome::cancelled("well"));
    let mut machine = Machine::restore(interrupted(machine), rules());
    let reply = Reply::approve_edited(asked(0, "call_1").id, json!({"eur": 4}));
    let replies = vec![reply.with_token("proof")];
    machine.reply(replies, now()).unwrap();
    drain(&mut machine);
    machine.state().unwrap()
}

/// The state of [`running`] after another process has restored it.
fn recovered() -> RunState {
    let mut machine = Machine::restore(running(), rules());
    assert!(matches!(
        machine.action(),
        Some(Action::Emit(Event::Resumed))
    ));
    machine.state().unwrap()
}

/// A run with a suspended nested agent.
fn inner() -> RunState {
    let mut machine = Machine::new(transcript(), rules());
    drain(&mut machine);
    machine.input(Input::ModelStarted(start(&["locate"])));
    machine.input(Input::ModelEvent(Event::text("I will pay.")));
    let within = call("call_1", "pay").executed_by(Executor::Agent);
    machine.input(Input::ModelEvent(Event::tool_call(within)));
    let mut finish = Finish::new(FinishReason::ToolCalls, Usage::new(10, 2));
    finish.outcome = Outcome::Interrupted;
    finish.state = Some(Box::new(waiting()));
    machine.input(Input::ModelEvent(Event::Finish(Box::new(finish))));
    *drain(&mut machine).unwrap().state.unwrap()
}

/// A run whose model is called next.
fn model() -> RunState {
    let mut machine = round_of(&[("call_1", "pay")]);
    settle(&mut machine, 0, ToolOutcome::done("paid"));
    machine.input(Input::RoundEnded);
    while machine.state().is_none() {
        machine.action();
    }
    machine.state().unwrap()
}

/// An open round from a history.
fn claimed() -> RunState {
    let calls = [call("call_1", "pay"), call("call_2", "pay")];
    let parts = calls.map(|call| Part::new(PartKind::ToolCall(call)));
    let mut open = OpenRound::new(Message::new(Role::Assistant, parts.into())).unwrap();
    let outcome = ToolOutcome::unknown("?");
    open.settle(&CallId::new("call_2"), outcome).unwrap();
    let tools = start(&["search"]).tools;
    let mut machine = Machine::claimed(transcript(), open, &tools, rules());
    assert!(matches!(
        machine.action(),
        Some(Action::Emit(Event::Resumed))
    ));
    machine.state().unwrap()
}

/// A run with lasting edits, whose model is called next.
fn edited() -> RunState {
    let mut machine = Machine::restore(model(), rules());
    let mut edits = RunEdits::default();
    let mut system = System::default();
    system.push(SystemSegment::new("Be brief."));
    edits.system = Some(system);
    edits.offered = Some(["search".into(), "pay".into()].into());
    let mut options = ChatOptions::default();
    options.max_output_tokens = Some(500);
    edits.options = Some(Arc::new(options));
    let mut transcript = machine.transcript().clone();
    let removed = edits.rewrite(&mut transcript, 3, [Turn::user("(Removed.)")]);
    assert!(removed.is_ok() && machine.edit(edits));
    drain_events(&mut machine);
    machine.state().unwrap()
}

fn drain_events(machine: &mut Machine) {
    while machine.state().is_none() {
        assert!(matches!(machine.action(), Some(Action::Emit(_))));
    }
}

/// The state that version 1 does not have.
const SINCE_2: &str = "edited";

fn states() -> [(&'static str, RunState); 7] {
    static STATES: LazyLock<[(&'static str, RunState); 7]> = LazyLock::new(|| {
        [
            ("model", model()),
            ("waiting", waiting()),
            ("running", running()),
            ("recovered", recovered()),
            ("inner", inner()),
            ("claimed", claimed()),
            (SINCE_2, edited()),
        ]
    });
    STATES.clone()
}

// ---- the format of each version ----

fn golden(version: u16, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("machine_state_v{version}_{name}.json"))
}

/// The observable content of a state.
fn meaning(state: &RunState) -> Value {
    let open = state.open_round().map(|open| {
        let calls = open.calls().iter();
        let outcome = |outcome: &Option<ToolOutcome>| outcome.as_ref().map(|o| o.status);
        calls
            .map(|open| json!([open.call.id, outcome(&open.outcome)]))
            .collect::<Vec<_>>()
    });
    let asked = state.interrupts();
    json!({
        "asks": asked.iter().map(|asked| &asked.id).collect::<Vec<_>>(),
        "open": open,
        "turns": state.transcript().len(),
    })
}

fn meanings() -> BTreeMap<&'static str, Value> {
    let two = json!(["msg_2/0/call_1", "msg_2/0/call_1#2", "msg_2/3/call_4"]);
    let mut meanings = BTreeMap::from([
        ("model", json!({"asks": [], "open": null, "turns": 4})),
        (
            "waiting",
            json!({"asks": two, "turns": 3, "open": [
                ["call_1", null], ["call_2", null], ["call_3", "done"], ["call_4", null],
                ["call_5", "failed"],
            ]}),
        ),
        (
            "running",
            json!({"asks": [], "turns": 3, "open": [
                ["call_1", null], ["call_2", "done"], ["call_3", "cancelled"],
            ]}),
        ),
        (
            "recovered",
            json!({"asks": [], "turns": 3, "open": [
                ["call_1", null], ["call_2", "done"], ["call_3", "cancelled"],
            ]}),
        ),
        ("inner", json!({"asks": two, "open": null, "turns": 3})),
        (SINCE_2, json!({"asks": [], "open": null, "turns": 3})),
        (
            "claimed",
            json!({"asks": [], "turns": 3, "open": [
                ["call_1", null], ["call_2", "unknown"],
            ]}),
        ),
    ]);
    // States written before `unreported` was added.
    for (name, before) in [
        ("model", "model_without_attempts"),
        ("running", "running_without_attempts"),
        ("recovered", "recovered_without_attempts"),
    ] {
        let meaning = meanings[name].clone();
        meanings.insert(before, meaning);
    }
    meanings
}

/// Set `WRITE_GOLDEN` to write the missing files of a new version.
#[test]
fn a_state_has_the_format_of_its_version() {
    for (name, state) in states() {
        assert_eq!(state.version(), VERSION, "update `VERSION` in this test");
        let path = golden(VERSION, name);
        let json: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
        if !path.exists() && std::env::var_os("WRITE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{json:#}\n")).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        assert_eq!(
            json,
            file,
            "\n\nThe format of `RunState` has changed ({name}). If version {VERSION} is released, \
             set `VERSION` in src/run_state/mod.rs and in this test to {next}, read both versions in \
             `from_json`, keep {kept}, and write the new files with `WRITE_GOLDEN=1`.\n",
            next = VERSION + 1,
            kept = path.display(),
        );
    }
}

// Case f048.
#[test]
fn states_of_every_version_keep_their_meaning() {
    let mut files = 0;
    for version in 1..=VERSION {
        for (name, expected) in meanings() {
            let is_old = name.ends_with("_without_attempts");
            if (version > 1 && is_old) || (version < 2 && name == SINCE_2) {
                continue;
            }
            let path = golden(version, name);
            let json = std::fs::read(&path).unwrap();
            let state = RunState::from_json(&json, MAX)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(meaning(&state), expected, "{}", path.display());
            // The state is written in the current format, with the same meaning.
            let written = read(&state.to_json().unwrap()).unwrap();
            assert_eq!(written, state);
            drive(&state);
            files += 1;
        }
    }
    let names = std::fs::read_dir(golden(1, "").parent().unwrap()).unwrap();
    assert_eq!(
        names.count(),
        files,
        "a golden file is not read by any test"
    );
}

#[test]
fn a_state_of_version_1_is_read_as_the_same_state() {
    for (name, state) in states().into_iter().filter(|(name, _)| *name != SINCE_2) {
        let json = std::fs::read(golden(1, name)).unwrap();
        assert_eq!(
            RunState::from_json(&json, MAX).as_ref(),
            Ok(&state),
            "{name}"
        );
        // The conversion that the property tests use is the inverse.
        let mut file: Value = serde_json::from_slice(&json).unwrap();
        forget_settled_refusals(&mut file);
        let mut written = serde_json::from_str(&state.to_json().unwrap()).unwrap();
        v1::downgrade(&mut written);
        assert_eq!(written, file, "{name}");
    }
}

/// Version 2 does not store why a call was refused once it has its outcome.
fn forget_settled_refusals(state: &mut Value) {
    if let Some(Value::Array(slots)) = state.pointer_mut("/stage/round/slots") {
        let settled = slots
            .iter_mut()
            .filter(|slot| slot["state"].get("settled").is_some());
        settled.for_each(|slot| slot["refusal"] = Value::Null);
    }
    if let Some(inner) = state.pointer_mut("/stage/inner/state") {
        forget_settled_refusals(inner);
    }
}

#[test]
fn a_restored_state_keeps_calls_and_replies() {
    // A running call is recovered, with its replies.
    for state in [running(), recovered()] {
        let mut machine = Machine::restore(state, rules());
        drain_until_round(&mut machine, |calls| {
            assert_eq!(calls.len(), 1);
            assert!(calls[0].is_recovered());
            let replies = calls[0].state.stage.replies();
            assert_eq!(replies[0].token.as_deref(), Some("proof"));
        });
    }
    // A refused call stays refused.
    let mut machine = Machine::restore(claimed(), rules());
    let reply = Reply::approve(InterruptId::new("-/0/call_1"));
    machine.reply(vec![reply], now()).unwrap();
    drain_until_round(&mut machine, |calls| assert!(calls[0].refusal().is_some()));
}

fn drain_until_round(machine: &mut Machine, check: impl FnOnce(&[concentric_proto::RoundCall])) {
    while let Some(action) = machine.action() {
        if let Action::RunTools { calls, .. } = action {
            return check(&calls);
        }
    }
    panic!("no round");
}

// ---- invalid states ----

/// Resumes a state and drives the run to its end.
fn drive(state: &RunState) {
    for resumes in [true, false] {
        let mut rules = rules();
        rules.steps = 3;
        rules.resumes = resumes;
        let asked: Vec<InterruptId> = state.interrupts().iter().map(|i| i.id.clone()).collect();
        let mut machine = Machine::restore(state.clone(), rules);
        let replies: Vec<Reply> = asked
            .iter()
            .map(|id| Reply::deny(id.clone(), "no"))
            .collect();
        let _ = machine.reply(replies, now());
        let mut terminal = 0;
        let was_over = machine.is_ended();
        for _ in 0..100 {
            let Some(action) = machine.action() else {
                break;
            };
            assert_eq!(terminal, 0, "{action:?} after the end");
            match action {
                Action::Emit(Event::Finish(finish)) => {
                    terminal += 1;
                    if let Some(state) = finish.state {
                        let json = state.to_json().unwrap();
                        assert_eq!(*state, read(&json).unwrap());
                    }
                }
                Action::Fail(_) => terminal += 1,
                Action::CallModel { .. } => {
                    machine.input(Input::ModelStarted(start(&["pay"])));
                    machine.input(Input::ModelEvent(Event::tool_call(call("x", "pay"))));
                    machine.input(Input::ModelEvent(Event::finish(
                        FinishReason::Stop,
                        Usage::new(u64::MAX, 1),
                    )));
                }
                Action::RunTools { calls, .. } => {
                    for index in 0..calls.len() {
                        if index % 3 < 2 {
                            settle(&mut machine, index, ToolOutcome::done("yes"));
                        }
                    }
                    machine.input(Input::RoundEnded);
                }
                _ => {}
            }
        }
        assert!(machine.is_ended());
        assert_eq!(terminal, usize::from(!was_over));
        // The transcript is complete.
        let json = serde_json::to_string(machine.transcript()).unwrap();
        let whole: Transcript = serde_json::from_str(&json).unwrap();
        assert_eq!(&whole, machine.transcript());
    }
}

/// Reads a modified state: the result is an error, or a run that ends.
fn read_and_drive(json: &str) -> bool {
    match read(json) {
        Ok(state) => {
            let _ = meaning(&state);
            drive(&state);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn a_truncated_state_is_rejected() {
    for (_, state) in states() {
        let json = state.to_json().unwrap();
        for len in 0..json.len() {
            let cut = RunState::from_json(&json.as_bytes()[..len], MAX);
            assert!(matches!(cut, Err(StateError::Malformed(_))), "{len} bytes");
        }
        assert!(read(&format!("{json}{json}")).is_err());
        assert!(read(&format!("{json} ")).is_ok());
    }
}

#[test]
fn a_state_with_a_flipped_bit_fails_or_ends() {
    for (_, state) in states() {
        let json = state.to_json().unwrap().into_bytes();
        for at in 0..json.len() {
            // Two bits per byte, which differ between bytes.
            for bit in [at % 8, (at / 8 + 3) % 8] {
                let mut flipped = json.clone();
                flipped[at] ^= 1 << bit;
                if let Ok(state) = RunState::from_json(&flipped, MAX) {
                    drive(&state);
                }
            }
        }
    }
}

#[test]
fn a_state_that_is_too_large_is_rejected() {
    let json = waiting().to_json().unwrap();
    let bytes = json.as_bytes();
    assert!(RunState::from_json(bytes, bytes.len()).is_ok());
    let refused = RunState::from_json(bytes, bytes.len() - 1);
    assert_eq!(refused, Err(StateError::TooLarge(bytes.len())));
    let refused = RunState::from_json(&vec![b' '; MAX + 1], MAX);
    assert_eq!(refused, Err(StateError::TooLarge(MAX + 1)));
}

/// Runs `f` on a stack as small as that of an async runtime's thread.
fn on_a_small_stack(f: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    thread.spawn(f).unwrap().join().unwrap();
}

#[test]
fn a_state_that_is_nested_too_deeply_is_rejected() {
    const DEEP: usize = 100_000;
    let nested = |open: &str, close: &str| open.repeat(DEEP) + &close.repeat(DEEP);
    let state = waiting().to_json().unwrap();
    let within = |name: &str, value: &str| {
        let (_, fields) = state.split_once('{').unwrap();
        format!("{{\"{name}\":{value},{fields}")
    };
    let data = |value: &str| state.replace(r#""data":[1]"#, &format!(r#""data":{value}"#));
    assert_ne!(data("7"), state);
    let hostile = [
        nested("[", "]"),
        nested("[", ""),
        nested(r#"{"version":"#, "}"),
        nested(r#"{"version":1,"stage":{"inner":{"state":"#, "}}}"),
        within("stage", &nested("{\"inner\":{\"state\":", "}}")),
        within("transcript", &nested("[", "]")),
        data(&nested("[", "]")),
        data(&nested(r#"{"a":"#, "}")),
    ];
    on_a_small_stack(move || {
        for json in hostile {
            let refused = RunState::from_json(json.as_bytes(), 16 << 20);
            assert!(matches!(refused, Err(StateError::Malformed(_))));
        }
    });
    // Unknown fields are skipped, at any depth.
    let unknown = within("unknown", &nested("[", "]"));
    on_a_small_stack(move || {
        assert!(RunState::from_json(unknown.as_bytes(), 16 << 20).is_ok());
    });
}

/// Nests agents until the state can no longer be written.
#[test]
fn nested_agents_are_read_at_every_depth_that_is_written() {
    on_a_small_stack(move || {
        let mut state = waiting();
        for depth in 0.. {
            let Ok(json) = state.to_json() else {
                assert!(depth > 20, "{depth}");
                break;
            };
            let read = read(&json).unwrap();
            assert_eq!(read.interrupts().len(), 3);
            assert_eq!(read, state);
            drive(&read);
            state = around(state);
        }
    });
}

/// JSON text of `depth` nested arrays.
fn nested_text(depth: usize) -> String {
    "[".repeat(depth) + "7" + &"]".repeat(depth)
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!("[[{{\\"), |value, _| json!([value]))
}

/// The state of a run whose nested agent is in the state `inner`.
fn around(inner: RunState) -> RunState {
    let mut machine = Machine::new(Transcript::new(), rules());
    drain(&mut machine);
    machine.input(Input::ModelStarted(start(&[])));
    let mut finish = Finish::new(FinishReason::ToolCalls, Usage::new(1, 1));
    finish.outcome = Outcome::Interrupted;
    finish.state = Some(Box::new(inner));
    machine.input(Input::ModelEvent(Event::Finish(Box::new(finish))));
    *drain(&mut machine).unwrap().state.unwrap()
}

/// States with a value of this depth, for each place that can contain external data.
fn filled(depth: usize) -> Vec<(&'static str, RunState)> {
    let asks = |interrupt: Interrupt| {
        let mut machine = round_of(&[("call_1", "pay")]);
        wait(&mut machine, 0, Suspension::new(vec![interrupt]));
        interrupted(machine)
    };
    let settled = |outcome: ToolOutcome| {
        let mut machine = round_of(&[("call_1", "pay"), ("call_2", "pay")]);
        settle(&mut machine, 0, outcome);
        wait(&mut machine, 1, Suspension::new(vec![asked(1, "call_2")]));
        interrupted(machine)
    };
    let by_provider = || {
        let data = ProviderData::new("p", nested(depth));
        Part::text("t").with_provider_data(Some(Arc::new(data)))
    };
    let own = Interrupt::new(InterruptId::new("q"), "its own");
    let pending = Suspension::new(vec![own.clone()]).with_state(nested(depth));
    let mut waits = round_of(&[("call_1", "pay")]);
    wait(&mut waits, 0, pending);
    let replied = {
        let mut machine = Machine::restore(asks(own.clone()), rules());
        let reply = Reply::resolve(own.id.clone(), nested(depth));
        machine.reply(vec![reply], now()).unwrap();
        drain(&mut machine);
        machine.state().unwrap()
    };
    let in_message = {
        let mut transcript = transcript();
        let message = Message::new(Role::User, vec![by_provider()]);
        transcript.push(Turn::message(message).unwrap());
        let mut machine = Machine::new(transcript, rules());
        drain(&mut machine);
        machine.input(Input::ModelStarted(start(&["pay"])));
        machine.input(Input::ModelEvent(Event::tool_call(call("call_1", "pay"))));
        let finish = Event::finish(FinishReason::ToolCalls, Usage::new(10, 2));
        machine.input(Input::ModelEvent(finish));
        drain(&mut machine);
        machine.state().unwrap()
    };
    vec![
        (
            "metadata",
            asks(asked(0, "call_1").with_metadata("arguments", nested(depth))),
        ),
        ("schema", asks(own.with_response_schema(nested(depth)))),
        (
            "data",
            settled(ToolOutcome::done("yes").with_data(nested(depth))),
        ),
        ("content", settled(ToolOutcome::done(vec![by_provider()]))),
        ("pending", interrupted(waits)),
        ("reply", replied),
        ("transcript", in_message),
    ]
}

#[test]
fn every_written_state_is_read_at_any_depth() {
    for depth in 1..=200 {
        for (place, state) in filled(depth) {
            for state in [around(state.clone()), state] {
                match state.to_json() {
                    Ok(json) => assert_eq!(read(&json).as_ref(), Ok(&state), "{place} {depth}"),
                    Err(error) => {
                        assert_eq!(error, StateError::TooDeep, "{place}");
                        assert!(depth > 100, "{place} {depth}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_arguments_of_a_call_may_have_any_depth() {
    for depth in (1..=200).chain([50_000]) {
        let mut machine = Machine::new(transcript(), rules());
        drain(&mut machine);
        machine.input(Input::ModelStarted(start(&["pay"])));
        for id in ["call_1", "call_2"] {
            let call = ToolCallPart::new(CallId::new(id), "pay", nested_text(depth));
            machine.input(Input::ModelEvent(Event::tool_call(call)));
        }
        let finish = Event::finish(FinishReason::ToolCalls, Usage::new(10, 2));
        machine.input(Input::ModelEvent(finish));
        drain(&mut machine);
        settle(&mut machine, 0, ToolOutcome::done(nested_text(depth)));
        wait(&mut machine, 1, Suspension::new(vec![asked(1, "call_2")]));
        let state = interrupted(machine);
        for state in [around(state.clone()), state] {
            assert_eq!(read(&state.to_json().unwrap()), Ok(state), "{depth}");
        }
    }
}

#[test]
fn a_state_that_evades_its_limits_is_rejected() {
    let mut json: Value = serde_json::from_str(&model().to_json().unwrap()).unwrap();
    json["free"] = json!(u32::MAX);
    assert!(matches!(
        read(&json.to_string()),
        Err(StateError::Malformed(_))
    ));
}

#[test]
fn a_state_of_another_version_is_rejected_first() {
    for (version, error) in [
        (json!(0), Some(StateError::Version(0))),
        (json!(3), Some(StateError::Version(3))),
        (json!(65_535), Some(StateError::Version(65_535))),
        (json!(65_536), None),
        (json!(-1), None),
        (json!("1"), None),
        (json!(1.0), None),
        (json!(null), None),
    ] {
        let refused = read(&json!({"version": version, "and": "an unknown field"}).to_string());
        match error {
            Some(error) => assert_eq!(refused, Err(error)),
            None => assert!(matches!(refused, Err(StateError::Malformed(_)))),
        }
    }
    // The version of a nested state is checked as well.
    let mut json: Value = serde_json::from_str(&inner().to_json().unwrap()).unwrap();
    json["stage"]["inner"]["state"]["version"] = json!(7);
    assert_eq!(read(&json.to_string()), Err(StateError::Version(7)));
}

type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn a_round_whose_calls_differ_from_its_message_is_rejected() {
    let state: Value = serde_json::from_str(&waiting().to_json().unwrap()).unwrap();
    let change = |f: Change<'_>| {
        let mut state = state.clone();
        f(&mut state["stage"]["round"]);
        read(&state.to_string())
    };
    let calls = |round: &mut Value| round["calls"].as_array_mut().unwrap().clone();
    let changes: [(&str, Change<'_>); 12] = [
        ("no calls", &|round| round["calls"] = json!([])),
        ("a call less", &|round| {
            round["calls"].as_array_mut().unwrap().pop();
        }),
        ("a call twice", &|round| {
            let first = calls(round)[0].clone();
            round["calls"].as_array_mut().unwrap().push(first);
        }),
        ("another order", &|round| {
            round["calls"].as_array_mut().unwrap().swap(0, 1)
        }),
        ("another tool", &|round| {
            round["calls"][0]["call"]["name"] = json!("search")
        }),
        ("other arguments", &|round| {
            round["calls"][0]["call"]["arguments"] = json!("{}")
        }),
        ("another executor", &|round| {
            round["calls"][0]["call"]["executor"] = json!("client")
        }),
        ("another id", &|round| {
            round["calls"][0]["call"]["id"] = json!("call_9")
        }),
        ("another message", &|round| {
            round["message"]["parts"][1]["kind"]["tool_call"]["name"] = json!("search");
        }),
        ("a message without calls", &|round| {
            round["message"]["parts"]
                .as_array_mut()
                .unwrap()
                .truncate(1);
        }),
        ("nothing at all", &|round| {
            round["message"]["parts"] = json!([]);
            round["calls"] = json!([]);
        }),
        ("two calls of one id", &|round| {
            let first = calls(round)[0].clone();
            round["calls"][1] = first.clone();
            round["message"]["parts"][2]["kind"] = json!({"tool_call": first["call"]});
        }),
    ];
    assert!(change(&|_| {}).is_ok());
    for (what, f) in changes {
        let refused = change(f);
        assert!(
            matches!(refused, Err(StateError::Round(_))),
            "{what}: {refused:?}"
        );
    }
    let mut within: Value = serde_json::from_str(&inner().to_json().unwrap()).unwrap();
    within["stage"]["inner"]["state"]["stage"]["round"]["calls"] = json!([]);
    assert!(matches!(
        read(&within.to_string()),
        Err(StateError::Round(_))
    ));
    let mut within: Value = serde_json::from_str(&inner().to_json().unwrap()).unwrap();
    within["stage"]["inner"]["said"]["message"]["parts"][1]["kind"]["tool_call"]["executor"] =
        json!("loop");
    assert!(matches!(
        read(&within.to_string()),
        Err(StateError::Round(_))
    ));
}
