//! Stored states that were modified before a run is resumed from them.
//!
//! `CONCENTRIC_SEED` and `CONCENTRIC_CASES` set the cases; a failure prints its seed.

use crate::common::Log;
use crate::kit::{Chance, Scene, env_or, number};
use concentric_core::{InterruptId, Reply, machine::RunState};
use concentric_tools::{Approval, Toolset};
use serde_json::{Value, json};

fn tools(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("refund", log))
        .tool(number("read", log).read_only())
        .gate(Approval::for_tools("refund"))
}

/// The paths of all values in a value.
fn paths(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    walk(field, &format!("{at}/{name}"), all);
                }
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    walk(item, &format!("{at}/{n}"), all);
                }
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    all
}

/// Replaces, removes, copies or duplicates one value.
fn modify(state: &mut Value, chance: &mut Chance) {
    let paths = paths(state);
    let at = &paths[chance.below(paths.len())];
    let replacement = match chance.below(4) {
        0 => json!([null, true, 0, -1, "", "ready", "released", [], {}])[chance.below(9)].take(),
        1 => {
            let from = &paths[chance.below(paths.len())];
            state.pointer(from).unwrap().clone()
        }
        2 => {
            let Some((parent, name)) = at.rsplit_once('/') else {
                return;
            };
            match state.pointer_mut(parent) {
                Some(Value::Object(fields)) => drop(fields.remove(name)),
                Some(Value::Array(items)) => drop(items.remove(name.parse().unwrap())),
                _ => {}
            }
            return;
        }
        _ => {
            if let Some(Value::Array(items)) = state.pointer_mut(at)
                && let Some(copy) = items.first().cloned()
            {
                items.push(copy);
            }
            return;
        }
    };
    *state.pointer_mut(at).unwrap() = replacement;
}

// Case F049. The decoder's own cases are in the tests of `concentric-proto`.
#[tokio::test]
async fn a_modified_state_runs_no_denied_call() {
    let seed = env_or("CONCENTRIC_SEED", 49);
    let (mut rejected, mut resumed) = (0, 0);
    for case in 0..env_or("CONCENTRIC_CASES", 2_000) {
        let mut chance = Chance::new(seed + case);
        let log = Log::default();
        let scene = Scene::round(vec![
            ("refund", r#"{"n": 1}"#),
            ("read", r#"{"n": 2}"#),
            ("refund", r#"{"n": 3}"#),
        ]);
        let state = scene.start(&tools(&log)).await.state();
        assert_eq!(log.lines(), ["read 2"]);
        let mut json = serde_json::from_str(&state.to_json().unwrap()).unwrap();
        for _ in 0..=chance.below(4) {
            modify(&mut json, &mut chance);
        }
        let Ok(state) = RunState::from_json(json.to_string().as_bytes(), usize::MAX) else {
            rejected += 1;
            continue;
        };
        let deny = |id: &InterruptId| Reply::deny(id.clone(), "no");
        let denied = state.interrupts().iter().map(|i| deny(&i.id)).collect();
        scene.resume(&tools(&log), state, denied).await;
        resumed += 1;
        let lines = log.lines();
        let refunds = lines.iter().filter(|line| line.starts_with("refund"));
        assert_eq!(refunds.count(), 0, "seed {}: {json}", seed + case);
    }
    println!("seed {seed}: {rejected} rejected, {resumed} resumed");
    assert!(rejected > 0 && resumed > 0);
}
