//! Random and long sequences of events.

use super::*;

#[tokio::test]
async fn a_thousand_events_keep_their_order() {
    let mut script = vec![step(0, "m")];
    script.extend((0..1000).map(|n| Event::text(format!("{n} "))));
    script.push(finish());
    let events = events(ok(script)).await;
    let text: String = of(&events, "TEXT_MESSAGE_CONTENT")
        .iter()
        .map(|e| e["delta"].as_str().unwrap())
        .collect();
    let expected: String = (0..1000).map(|n| format!("{n} ")).collect();
    assert_eq!(text, expected);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..5_i64).prop_map(Value::from),
        "[a-c/~\"]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~ ]{0,2}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// An event of the agent, of a sub-agent, or of a nested sub-agent. Events of a hostile agent come
/// in any order, and use few ids so that they collide.
pub fn any_event() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![Just("u"), Just("c"), Just("s")];
    let sub = move |event| {
        let of = (id(), prop::option::of(id()), event);
        of.prop_map(|(run, call, event)| {
            let call = call.map(CallId::new);
            let event = SubAgentEvent::new(RunId::new(run), None, call, event);
            Event::SubAgent(Box::new(event))
        })
    };
    let end = any_end().prop_map(|end| match end {
        Some(Ok(end)) => end,
        _ => Event::Reset,
    });
    let inner = prop_oneof![6 => own_event(), 1 => end].boxed();
    let inner = inner.prop_recursive(2, 4, 1, sub);
    prop_oneof![3 => own_event(), 2 => sub(inner.boxed())]
}

fn own_event() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![Just("u"), Just("c"), Just("c~2"), Just(""), Just("\"\n")];
    let text = || prop_oneof![Just(""), Just("x"), Just("\r\n\n"), Just("\u{0}é\"")];
    let executor = || {
        prop_oneof![
            Just(Executor::Loop),
            Just(Executor::Client),
            Just(Executor::Agent),
            Just(Executor::Provider)
        ]
    };
    prop_oneof![
        (0..2_u32, id()).prop_map(|(n, id)| step(n, id)),
        (0..2_u32).prop_map(step_end),
        text().prop_map(Event::text),
        text().prop_map(|t| Event::ReasoningDelta(t.into())),
        text().prop_map(|t| Event::RefusalDelta(t.into())),
        Just(Event::PartEnd(Box::default())),
        text().prop_map(|t| Event::Part(Box::new(Part::text(t)))),
        text().prop_map(|t| Event::Part(Box::new(Part::new(PartKind::Reasoning(t.into()))))),
        (id(), executor()).prop_map(|(id, executor)| {
            let call = ToolCallPart::new(CallId::new(id), "g", "{").executed_by(executor);
            Event::Part(Box::new(Part::new(PartKind::ToolCall(call))))
        }),
        (0..3_u32, id()).prop_map(|(n, id)| preview(n, id, "f")),
        (0..3_u32, text()).prop_map(|(n, t)| piece(n, t)),
        (id(), executor()).prop_map(|(id, executor)| call_by(executor, id)),
        id().prop_map(|id| result(id, ToolOutcome::done("x"))),
        id().prop_map(|id| {
            let call = ToolCallPart::new(CallId::new(id), "f", "");
            result(id, Refusal::DuplicateId.outcome(&call))
        }),
        any_json().prop_map(state),
        any_json().prop_map(|v| Event::Custom(Box::new(CustomEvent::new("n", v)))),
        Just(Event::Resumed),
        Just(Event::Reset),
        prop::collection::vec(id(), 0..3).prop_map(|ids| {
            let turns = ids.into_iter().map(snapshot::round);
            Event::TranscriptReplaced(turns.collect())
        }),
    ]
}

pub fn any_end() -> impl Strategy<Value = Option<Item>> {
    prop_oneof![
        Just(None),
        Just(Some(Err(Error::new(ErrorKind::Server, "x")))),
        Just(Some(Ok(finish()))),
        Just(Some(Ok(finish_with(Outcome::Interrupted)))),
        Just(Some(Ok(finish_with(Outcome::StepLimit)))),
        Just(Some(Ok(finish_with(Outcome::Aborted {
            reason: CancelReason::User
        })))),
    ]
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Applies a patch like a client.
fn apply(value: &mut Value, delta: &Value) {
    for op in delta.as_array().unwrap() {
        let path = op["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').expect("never the root");
        let key = key.replace("~1", "/").replace("~0", "~");
        match value.pointer_mut(parent).unwrap() {
            Value::Object(map) => match op["op"].as_str().unwrap() {
                "add" => assert!(map.insert(key, op["value"].clone()).is_none()),
                "replace" => assert!(map.insert(key, op["value"].clone()).is_some()),
                "remove" => assert!(map.remove(&key).is_some()),
                other => panic!("{other}"),
            },
            Value::Array(list) => {
                let at: usize = key.parse().unwrap();
                match op["op"].as_str().unwrap() {
                    "add" => list.insert(at, op["value"].clone()),
                    "replace" => list[at] = op["value"].clone(),
                    "remove" => drop(list.remove(at)),
                    other => panic!("{other}"),
                }
            }
            other => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // Case F059.
    #[test]
    fn every_sequence_of_events_becomes_a_legal_stream(
        script in prop::collection::vec(any_event(), 0..40),
        end in any_end(),
        rest in prop::collection::vec(any_event(), 0..3),
    ) {
        let text = |events: &[Event]| -> String {
            events.iter().map(|event| match event {
                Event::TextDelta(text) | Event::RefusalDelta(text) => text.as_str(),
                Event::Part(part) => match &part.kind {
                    PartKind::Text(text) => text.as_str(),
                    _ => "",
                },
                _ => "",
            }).collect()
        };
        let expected = text(&script);
        let mut items = ok(script);
        items.extend(end);
        if items.last().is_some_and(|last| last.as_ref().map_or(true, Event::is_finish)) {
            items.extend(ok(rest));
        }
        let events = block_on(events(items));
        let written: String = of(&events, "TEXT_MESSAGE_CONTENT")
            .iter()
            .filter(|e| e["subagentRunId"].is_null())
            .map(|e| e["delta"].as_str().unwrap())
            .collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn applying_the_deltas_yields_the_state(
        states in prop::collection::vec(any_json(), 1..8),
    ) {
        let script = states.iter().cloned().map(state).chain([finish()]);
        let events = block_on(events(ok(script.collect())));
        let mut value = Value::Null;
        for event in &events {
            match event["type"].as_str().unwrap() {
                "STATE_SNAPSHOT" => value = event["snapshot"].clone(),
                "STATE_DELTA" => apply(&mut value, &event["delta"]),
                _ => {}
            }
        }
        prop_assert_eq!(Some(&value), states.last());
    }
}

#[test]
fn the_helper_rejects_an_illegal_stream() {
    let cut = "data: {\"type\":\"RUN_STARTED\",\"threadId\":\"t\",\"runId\":\"r\"}\n\n";
    assert!(std::panic::catch_unwind(|| legal(cut)).is_err());
}

/// Returns the written events; fails if writing takes longer than linear work could.
fn in_time(events: Vec<Item>) -> Vec<Value> {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        done.send(runtime.block_on(crate::support::events(events)))
    });
    let events = wait.recv_timeout(std::time::Duration::from_secs(60));
    events.expect("it takes too long")
}

#[test]
fn many_messages_of_a_step_are_written() {
    const MANY: usize = 50_000;
    let mut script = vec![Ok(step(0, "m"))];
    for _ in 0..MANY {
        script.push(Ok(Event::ReasoningDelta("a".into())));
        script.push(Ok(Event::text("b")));
    }
    script.push(Ok(finish()));
    let events = in_time(script);
    let texts = types(&events)
        .into_iter()
        .filter(|t| *t == "TEXT_MESSAGE_START");
    assert_eq!(texts.count(), MANY);
}

#[test]
fn many_concurrent_calls_are_written() {
    const MANY: u32 = 20_000;
    let mut script = vec![Ok(step(0, "m"))];
    for at in 0..MANY {
        let id = CallId::new(format!("c{at}"));
        script.push(Ok(Event::ToolCallStart(Box::new(ToolCallStart::new(
            at, id, "f",
        )))));
    }
    for at in 0..MANY {
        script.push(Ok(Event::ToolCallDelta(ToolCallDelta::new(at, "{}"))));
    }
    script.push(Ok(finish()));
    let events = in_time(script);
    let deltas = types(&events)
        .into_iter()
        .filter(|t| *t == "TOOL_CALL_ARGS");
    assert_eq!(deltas.count(), MANY as usize);
}
