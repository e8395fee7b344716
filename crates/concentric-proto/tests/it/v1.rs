//! Converts the JSON of a run state to version 1, which stored each call with flags.

use serde_json::{Map, Value, json};

/// The text of `state` in version 1.
pub(crate) fn text(state: &str) -> String {
    let mut state: Value = serde_json::from_str(state).unwrap();
    downgrade(&mut state);
    state.to_string()
}

pub(crate) fn downgrade(state: &mut Value) {
    state["version"] = json!(1);
    if let Some(gate) = state.get_mut("gate").and_then(Value::as_object_mut) {
        let on = gate.remove("on").unwrap();
        gate.insert("pending".to_owned(), on);
    }
    if let Some(round) = state["stage"].get_mut("round") {
        calls(round);
    }
    if let Some(inner) = state["stage"].get_mut("inner") {
        calls(&mut inner["said"]);
        downgrade(&mut inner["state"]);
    }
}

fn calls(round: &mut Value) {
    let round = round.as_object_mut().unwrap();
    let Some(calls) = round.remove("calls") else {
        return;
    };
    let Value::Array(calls) = calls else { panic!() };
    let mut slots: Vec<Value> = calls.into_iter().map(slot).collect();
    if let Some(accepted) = round.remove("accepted") {
        let mut settled = slots.iter_mut();
        let first = settled
            .find(|slot| slot["state"].get("settled").is_some())
            .unwrap();
        first["answered"] = json!({"pending": null, "replies": accepted});
    }
    round.insert("slots".to_owned(), slots.into());
}

fn slot(call: Value) -> Value {
    let Value::Object(mut call) = call else {
        panic!()
    };
    let mut slot = Map::new();
    for field in ["call", "refusal"] {
        slot.insert(field.to_owned(), call.remove(field).unwrap_or_default());
    }
    let running = call.remove("running");
    let earlier = call.remove("earlier").unwrap_or_default();
    let recorded = |of: Option<&Value>| of.is_some_and(|of| of["recorded"] == json!(true));
    let mut flags = Map::new();
    flags.insert("recovered".to_owned(), earlier.get("lost").is_some().into());
    flags.insert("begun".to_owned(), (earlier == json!("suspended")).into());
    let noted = recorded(running.as_ref()) || recorded(earlier.get("lost"));
    flags.insert("noted".to_owned(), noted.into());
    slot.extend(flags.into_iter().filter(|(_, flag)| *flag == json!(true)));
    let read_only = call.remove("read_only").unwrap_or(json!(false));
    slot.insert("read_only".to_owned(), read_only);

    let state = match running {
        Some(_) => json!("running"),
        None => json!("ready"),
    };
    let stage = call.remove("stage").unwrap();
    let (state, answered) = match stage.as_str().unwrap() {
        "ready" | "rejected" => (state, None),
        "settled" => (json!({"settled": call.remove("outcome")}), None),
        "held" | "suspended" => (json!({"waiting": pending(&mut call)}), None),
        "unverified" if state == "ready" && call.get("replies").is_none() => {
            (json!({"waiting": null}), None)
        }
        "released" | "unverified" | "resumed" => (state, Some(answered(&mut call))),
        other => panic!("{other}"),
    };
    slot.insert("state".to_owned(), state);
    if let Some(answered) = answered {
        slot.insert("answered".to_owned(), answered);
    }
    assert!(call.is_empty(), "{call:?}");
    slot.into()
}

fn answered(call: &mut Map<String, Value>) -> Value {
    let mut answered = Map::new();
    answered.insert("pending".to_owned(), pending(call));
    let replies = call.remove("replies").unwrap_or_else(|| json!([]));
    answered.insert("replies".to_owned(), replies);
    if let Some(at) = call.remove("accepted_at") {
        answered.insert("accepted_at".to_owned(), at);
    }
    if let Some(interrupted) = call.remove("interrupted") {
        answered.insert("taken_up".to_owned(), interrupted);
    }
    answered.into()
}

fn pending(call: &mut Map<String, Value>) -> Value {
    let Some(mut on) = call.remove("on") else {
        return Value::Null;
    };
    let by = call.remove("by").unwrap();
    on["together"] = on.get("together").cloned().unwrap_or(json!(false));
    if by == "tool" {
        on["begun"] = json!(true);
    }
    on
}
