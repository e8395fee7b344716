//! The values of slots: compare-and-swap, and values that are restored on first use.

use super::source::Slots;
use concentric_core::run_state::{SlotPlace, StoredSlot};
use concentric_core::state::{Durable, Scope, Slot};
use loom::thread;
use serde_json::json;

struct Counter;

impl Slot for Counter {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/counter";
    const SCOPE: Scope = Scope::Run;
}

struct Other;

impl Slot for Other {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/other";
    const SCOPE: Scope = Scope::Run;
}

fn add<S>(slots: &Slots)
where
    S: Slot<Value = u32>,
{
    slots
        .update::<S>(SlotPlace::Whole, |value| value + 1)
        .unwrap();
}

fn get<S>(slots: &Slots) -> u32
where
    S: Slot<Value = u32>,
{
    *slots.get::<S>(SlotPlace::Whole).unwrap()
}

/// The stored form of the value 10.
fn stored() -> Option<StoredSlot> {
    serde_json::from_value(json!({"slot": "test/counter", "version": 1, "value": 10})).ok()
}

pub(crate) fn no_update_is_lost() {
    let slots = Slots::new();
    let threads =
        [slots.clone(), slots.clone()].map(|slots| thread::spawn(move || add::<Counter>(&slots)));
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(get::<Counter>(&slots), 2);
}

pub(crate) fn a_first_read_keeps_updates() {
    let slots = Slots::restore(stored());
    let writer = thread::spawn({
        let slots = slots.clone();
        move || add::<Counter>(&slots)
    });
    let seen = get::<Counter>(&slots);
    assert!(seen == 10 || seen == 11);
    writer.join().unwrap();
    assert_eq!(get::<Counter>(&slots), 11);
}

pub(crate) fn a_run_is_restored_once() {
    let slots = Slots::new();
    let threads = [slots.clone(), slots.clone()].map(|slots| {
        thread::spawn(move || {
            slots.resume(stored());
            add::<Counter>(&slots);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(get::<Counter>(&slots), 12);
}

pub(crate) fn a_commit_keeps_other_changes() {
    let slots = Slots::restore(stored());
    let draft = slots.draft();
    let turn = thread::spawn({
        let slots = slots.clone();
        move || {
            add::<Counter>(&draft);
            drop(slots.commit(&draft));
        }
    });
    add::<Other>(&slots);
    turn.join().unwrap();
    assert_eq!((get::<Counter>(&slots), get::<Other>(&slots)), (11, 1));
}
