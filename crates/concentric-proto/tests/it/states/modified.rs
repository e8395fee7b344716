//! Modified states.

use super::*;

/// The paths of all values in a value, the outermost first.
fn places(value: &Value) -> Vec<String> {
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

fn wrong() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(""),
        json!("ready"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"settled": null}),
    ]
}

/// Removes the value at `place`.
fn remove(value: &mut Value, place: &str) {
    let Some((parent, name)) = place.rsplit_once('/') else {
        return;
    };
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.remove(name);
        }
        Some(Value::Array(items)) => {
            if let Ok(at) = name.parse::<usize>()
                && at < items.len()
            {
                items.remove(at);
            }
        }
        _ => {}
    }
}

#[test]
fn a_state_with_a_mistyped_value_fails_or_ends() {
    let mut accepted = 0;
    // The other states are similar to these, or parts of them.
    for state in [running(), claimed(), inner()] {
        let json: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
        for place in places(&json) {
            for value in wrong() {
                let mut changed = json.clone();
                *changed.pointer_mut(&place).unwrap() = value;
                accepted += usize::from(read_and_drive(&changed.to_string()));
            }
            let mut changed = json.clone();
            remove(&mut changed, &place);
            accepted += usize::from(read_and_drive(&changed.to_string()));
        }
    }
    assert!(accepted > 100, "{accepted}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    // Case f049.
    #[test]
    fn a_modified_state_is_rejected_or_ends(
        which in 0..6_usize,
        changes in prop::collection::vec((0..4_u8, any::<usize>(), any::<usize>()), 1..5),
    ) {
        let (_, state) = states()[which].clone();
        let mut json: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
        for (how, at, other) in changes {
            let places = places(&json);
            let at = &places[at % places.len()];
            match how {
                // Replaces a value.
                0 => {
                    let wrong = wrong();
                    *json.pointer_mut(at).unwrap() = wrong[other % wrong.len()].clone();
                }
                1 => remove(&mut json, at),
                // Copies another value.
                2 => {
                    let from = &places[other % places.len()];
                    let copy = json.pointer(from).unwrap().clone();
                    *json.pointer_mut(at).unwrap() = copy;
                }
                // Duplicates an item.
                _ => {
                    if let Some(Value::Array(items)) = json.pointer_mut(at)
                        && !items.is_empty()
                    {
                        let copy = items[other % items.len()].clone();
                        items.push(copy);
                    }
                }
            }
        }
        read_and_drive(&json.to_string());
    }

    #[test]
    fn arbitrary_bytes_are_not_a_state(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(RunState::from_json(&bytes, MAX).is_err());
    }
}
