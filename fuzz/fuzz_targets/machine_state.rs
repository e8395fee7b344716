//! States of runs, as a store returns them: what is read is written the same, and a run that goes on
//! with it ends, and runs no call twice.
//!
//! An input that begins with `{` is a state; any other changes one of those that are kept.
use arbitrary::{Arbitrary, Unstructured};
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, Event, FinishReason, Interrupt, Reply,
    Str, ToolCall, ToolOutcome, ToolSpec, Usage,
    machine::{RunState, StateError},
};
use concentric_fuzz::{Json, block_on};
use concentric_tools::{Approval, Tool, Toolset};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    convert::Infallible,
    future::ready,
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt, service_fn};

const KEPT: [&str; 6] = [
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_claimed.json"),
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_inner.json"),
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_model.json"),
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_recovered.json"),
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_running.json"),
    include_str!("../../crates/concentric-proto/tests/golden/machine_state_v1_waiting.json"),
];

#[derive(Arbitrary, Debug)]
struct Case {
    kept: u8,
    changes: Vec<(Vec<u8>, Change)>,
    answers: Vec<Answer>,
}

#[derive(Arbitrary, Debug)]
enum Change {
    Remove,
    Double,
    Set(Json),
    Copy(Vec<u8>),
    Name(u8),
    Text(String),
}

#[derive(Arbitrary, Clone, Debug)]
enum Answer {
    Approve,
    Deny,
    Cancel,
    None,
    Payload(Json),
}

impl Case {
    fn state(&self) -> String {
        let kept = KEPT[usize::from(self.kept) % KEPT.len()];
        let mut state: Value = serde_json::from_str(kept).expect("JSON");
        for (path, change) in self.changes.iter().take(8) {
            let from = match change {
                Change::Copy(from) => at(&mut state, from).clone(),
                _ => Value::Null,
            };
            let place = at(&mut state, path);
            match change {
                Change::Remove => match place {
                    Value::Array(items) => drop(items.pop()),
                    Value::Object(fields) => {
                        if let Some(key) = fields.keys().next().cloned() {
                            fields.remove(&key);
                        }
                    }
                    other => *other = Value::Null,
                },
                Change::Double => {
                    if let Value::Array(items) = place
                        && let Some(first) = items.first().cloned()
                    {
                        items.push(first);
                    }
                }
                Change::Set(json) => *place = json.value(),
                Change::Copy(_) => *place = from,
                Change::Name(name) => {
                    let names = [
                        "pay", "search", "locate", "call_1", "call_2", "loop", "client",
                    ];
                    *place = json!(names[usize::from(*name) % names.len()]);
                }
                Change::Text(text) => *place = json!(text),
            }
        }
        state.to_string()
    }
}

/// The value at a path, as far as there is one.
fn at<'a>(value: &'a mut Value, path: &[u8]) -> &'a mut Value {
    let Some((first, rest)) = path.split_first() else {
        return value;
    };
    let first = usize::from(*first);
    let is_leaf = match &*value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => true,
    };
    if is_leaf {
        return value;
    }
    match value {
        Value::Array(items) => {
            let index = first % items.len();
            at(&mut items[index], rest)
        }
        Value::Object(fields) => {
            let index = first % fields.len();
            at(fields.values_mut().nth(index).expect("a field"), rest)
        }
        other => other,
    }
}

fn reply(asked: &Interrupt, answer: &Answer) -> Option<Reply> {
    let id = asked.id.clone();
    Some(match answer {
        Answer::Approve => Reply::approve(id),
        Answer::Deny => Reply::resolve(id, json!({"approved": false})),
        Answer::Cancel => Reply::cancel(id),
        Answer::None => return None,
        Answer::Payload(json) => Reply::resolve(id, json.value()),
    })
}

pub(crate) fn run(bytes: &[u8]) {
    let (json, changed, answers) = match bytes.first() {
        Some(b'{') => (
            String::from_utf8_lossy(bytes).into_owned(),
            true,
            Vec::new(),
        ),
        _ => match Case::arbitrary_take_rest(Unstructured::new(bytes)) {
            Ok(case) => (case.state(), !case.changes.is_empty(), case.answers),
            Err(_) => return,
        },
    };
    let Ok(state) = RunState::from_json(json.as_bytes(), 1 << 20) else {
        assert!(changed, "a kept state is refused");
        return;
    };
    match state.to_json() {
        Ok(json) => {
            let again = RunState::from_json(json.as_bytes(), 4 << 20);
            assert_eq!(again.as_ref(), Ok(&state), "it reads another way");
        }
        Err(error) => assert_eq!(error, StateError::TooDeep),
    }

    let ran: Arc<Mutex<HashMap<Option<Str>, usize>>> = Arc::default();
    let work = |name: &'static str| {
        let ran = Arc::clone(&ran);
        let spec = ToolSpec::new(name, "", json!({"type": "object"}));
        Tool::new(
            spec,
            service_fn(move |call: ToolCall| {
                let key = call.context.idempotency_key();
                *ran.lock().expect("no panic").entry(key).or_default() += 1;
                ready(Ok::<_, Infallible>(ToolOutcome::done("done")))
            }),
        )
    };
    let tools = Toolset::new()
        .tool(work("pay"))
        .tool(work("search").read_only())
        .gate(Approval::for_tools("pay"));
    let model = service_fn(|_: ChatRequest| {
        let events = [
            Event::text("Done."),
            Event::finish(FinishReason::Stop, Usage::new(1, 1)),
        ];
        let body = futures_util::stream::iter(events.map(Ok::<_, Error>));
        ready(Ok::<_, Error>(ChatResponse::new(body)))
    });
    let agent = AgentLayer::new(tools).layer(BoxModel::new(model));
    let mut answers = answers
        .into_iter()
        .chain(std::iter::repeat(Answer::Approve));
    let replies: Vec<Reply> = state
        .interrupts()
        .into_iter()
        .zip(&mut answers)
        .filter_map(|(asked, answer)| reply(asked, &answer))
        .collect();
    block_on(async {
        let Ok(response) = agent.oneshot(ChatRequest::resume(state, replies)).await else {
            return;
        };
        let mut body = std::pin::pin!(response.body);
        let mut ended = false;
        let mut items = 0;
        while let Some(item) = body.next().await {
            assert!(!ended, "an item behind the end");
            ended = !matches!(&item, Ok(event) if !event.is_finish());
            items += 1;
            assert!(items < 10_000, "there is no end of it");
        }
        assert!(ended, "it ends without an end");
    });
    let ran = ran.lock().expect("no panic");
    assert!(ran.values().all(|times| *times == 1), "ran twice: {ran:?}");
}
