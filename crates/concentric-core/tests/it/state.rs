//! Slots: their scopes, their stored values, and their errors.

use concentric_core::{
    BoxError, CallId, Context, MessageId, RoundCall, Str, ToolCallPart,
    state::{Durable, Scope, Slot, SlotError, Slots, Transient},
};
use serde_json::{Value, json};
use std::{error::Error, thread};

macro_rules! slot {
    ($name:ident, $value:ty, $keep:ty, $scope:ident) => {
        struct $name;

        impl Slot for $name {
            type Value = $value;
            type Keep = $keep;
            const NAME: &'static str = concat!("test/", stringify!($name));
            const SCOPE: Scope = Scope::$scope;
        }
    };
}

slot!(OfCall, u32, Durable, Call);
slot!(OfRound, u32, Durable, Round);
slot!(OfRun, u32, Durable, Run);
slot!(OfThread, u32, Durable, Thread);
slot!(OfSession, u32, Durable, Session);
slot!(Passing, u32, Transient, Thread);

fn add<S: Slot<Value = u32>>(context: &Context) -> u32 {
    *context.update_state::<S>(|n| n + 1).unwrap()
}

fn now<S: Slot<Value = u32>>(context: &Context) -> u32 {
    *context.state::<S>().unwrap()
}

fn call(context: &Context, message: &str, position: usize) -> Context {
    let part = ToolCallPart::new(CallId::new(format!("call-{position}")), "t", "{}");
    context
        .at_round(0, Some(MessageId::new(message)))
        .at_call(&RoundCall::new(position, part))
}

// Case c106.
#[test]
fn an_update_is_visible_to_the_next_reader() {
    let context = Context::new();
    let (writer, reader) = (context.clone(), context.at_step(3, MessageId::new("m")));
    assert_eq!(now::<OfRun>(&reader), 0);
    let before = reader.state::<OfRun>().unwrap();
    add::<OfRun>(&writer);
    assert_eq!(now::<OfRun>(&reader), 1);
    assert_eq!(*before, 0, "a value that was read does not change");
}

// Case c107.
#[test]
fn runs_through_one_layer_have_separate_values() {
    let (one, other) = (Context::new(), Context::new());
    add::<OfRun>(&one);
    add::<OfThread>(&one);
    assert_eq!((now::<OfRun>(&other), now::<OfThread>(&other)), (0, 0));
    // The run of a sub-agent is a separate run.
    assert_eq!(now::<OfRun>(&one.child().build()), 0);
}

#[test]
fn concurrent_updates_are_not_lost() {
    let context = Context::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    add::<OfRun>(&context);
                }
            });
        }
    });
    assert_eq!(now::<OfRun>(&context), 8_000);
}

#[test]
fn each_call_and_each_round_has_its_own_values() {
    let context = Context::new();
    let (first, second) = (call(&context, "m", 0), call(&context, "m", 1));
    add::<OfCall>(&first);
    add::<OfRound>(&first);
    assert_eq!((now::<OfCall>(&first), now::<OfCall>(&second)), (1, 0));
    assert_eq!(now::<OfRound>(&second), 1);
    // A resumed call has the same values.
    assert_eq!(now::<OfCall>(&call(&context, "m", 0)), 1);
    let next = call(&context, "n", 0);
    assert_eq!((now::<OfCall>(&next), now::<OfRound>(&next)), (0, 0));
}

#[test]
fn a_call_slot_is_an_error_outside_a_call() {
    let context = Context::new();
    let error = context.state::<OfCall>().unwrap_err();
    assert_eq!(error.slot(), "test/OfCall");
    assert_eq!(
        error.to_string(),
        "the slot `test/OfCall` can be used only inside a tool call"
    );
    let round = context.at_round(0, None);
    assert_eq!(now::<OfRound>(&round), 0);
    assert!(context.update_state::<OfRound>(|n| n + 1).is_err());
}

#[test]
fn thread_values_outlive_their_runs() {
    let (thread, session) = (Slots::new(), Slots::new());
    let run = || {
        let mut context = Context::new();
        context.set_thread_slots(thread.clone());
        context.set_session_slots(session.clone());
        context
    };
    let first = run();
    add::<OfThread>(&first);
    add::<OfSession>(&first);
    add::<OfRun>(&first);
    let second = run();
    assert_eq!(now::<OfThread>(&second), 1);
    assert_eq!(now::<OfSession>(&second), 1);
    assert_eq!(now::<OfRun>(&second), 0);
    assert_eq!(now::<OfThread>(&second.child().build()), 1);
}

// Case c112.
#[test]
fn a_fork_copies_durable_values() {
    let (thread, session) = (Slots::new(), Slots::new());
    let run = |thread: &Slots| {
        let mut context = Context::new();
        context.set_thread_slots(thread.clone());
        context.set_session_slots(session.clone());
        context
    };
    let before = run(&thread);
    add::<OfThread>(&before);
    add::<OfSession>(&before);
    add::<Passing>(&before);
    let fork = thread.fork().unwrap();
    let (old, new) = (run(&thread), run(&fork));
    assert_eq!(now::<OfThread>(&new), 1, "it is copied");
    assert_eq!(now::<Passing>(&new), 0, "it is fresh");
    add::<OfThread>(&new);
    assert_eq!((now::<OfThread>(&old), now::<OfThread>(&new)), (1, 2));
    add::<OfSession>(&new);
    assert_eq!(now::<OfSession>(&old), 2, "it is shared");
}

#[test]
fn removed_slots_are_empty_for_all_handles() {
    let thread = Slots::new();
    let run = context(&thread);
    add::<OfThread>(&run);
    add::<Passing>(&run);
    let stored = Slots::restore(thread.snapshot().unwrap());
    for slots in [&thread, &stored] {
        let taken = context(&slots.take());
        assert_eq!(now::<OfThread>(&context(slots)), 0);
        assert_eq!(now::<Passing>(&context(slots)), 0);
        assert!(
            slots
                .snapshot()
                .unwrap()
                .iter()
                .all(|s| s.value == json!(0))
        );
        assert_eq!(now::<OfThread>(&taken), 1);
    }
    assert_eq!(add::<OfThread>(&run), 1);
}

// ---- stored values ----

fn context(thread: &Slots) -> Context {
    let mut context = Context::new();
    context.set_thread_slots(thread.clone());
    context
}

#[test]
fn stored_values_are_restored_and_unknown_ones_preserved() {
    let thread = Slots::new();
    add::<OfThread>(&context(&thread));
    add::<Passing>(&context(&thread));
    let written = serde_json::to_value(thread.snapshot().unwrap()).unwrap();
    assert_eq!(
        written,
        json!([{"slot": "test/OfThread", "version": 1, "value": 1}])
    );
    let read = || Slots::restore(serde_json::from_value::<Vec<_>>(written.clone()).unwrap());
    assert_eq!(
        serde_json::to_value(read().snapshot().unwrap()).unwrap(),
        written
    );
    let thread = read();
    assert_eq!(add::<OfThread>(&context(&thread)), 2);
    assert_eq!(thread.snapshot().unwrap()[0].value, json!(2));
    assert_eq!(thread.snapshot().unwrap().len(), 1);
}

/// The same slot in another version of the program.
struct Names;

impl Slot for Names {
    type Value = Vec<String>;
    type Keep = Durable;
    const NAME: &'static str = "test/OfThread";
    const SCOPE: Scope = Scope::Thread;
    const VERSION: u32 = 2;

    fn migrate(version: u32, value: Value) -> Result<Vec<String>, BoxError> {
        match (version, value.as_u64()) {
            (1, Some(n)) => Ok(vec!["?".to_owned(); usize::try_from(n)?]),
            _ => Err("it is none of ours".into()),
        }
    }
}

#[test]
fn a_value_of_an_older_version_is_migrated() {
    let thread = Slots::new();
    add::<OfThread>(&context(&thread));
    let thread = thread.fork().unwrap();
    assert_eq!(*context(&thread).state::<Names>().unwrap(), ["?"]);
    assert_eq!(thread.snapshot().unwrap()[0].version, 2);
    // A newer value cannot be read by an older version.
    let thread = thread.fork().unwrap();
    let error = context(&thread).state::<OfThread>().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the value stored by version 2"),
        "{error}"
    );
    assert!(
        error
            .source()
            .unwrap()
            .to_string()
            .contains("version 2 can't be migrated to version 1")
    );
    // The stored value is preserved.
    assert_eq!(thread.snapshot().unwrap()[0].version, 2);
}

#[test]
fn an_invalid_stored_value_is_an_error() {
    let stored = json!([{"slot": "test/OfThread", "version": 1, "value": "seven"}]);
    let thread = Slots::restore(serde_json::from_value::<Vec<_>>(stored).unwrap());
    let error = context(&thread).state::<OfThread>().unwrap_err();
    let error = concentric_core::Error::from(error);
    assert_eq!(error.code(), Some("slot"));
    assert!(
        context(&thread)
            .update_state::<OfThread>(|n| n + 1)
            .is_err()
    );
}

#[test]
fn two_slots_with_the_same_name_are_an_error() {
    let context = Context::new();
    add::<OfThread>(&context);
    let error = context.state::<Names>().unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("two slots are named `test/OfThread`"),
        "{error}"
    );
}

#[derive(Default)]
struct Cursed;

impl serde::Serialize for Cursed {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

impl<'de> serde::Deserialize<'de> for Cursed {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Self)
    }
}

slot!(CanNotBeWritten, Cursed, Durable, Thread);

#[test]
fn an_error_names_the_slot_that_cannot_be_serialized() {
    let thread = Slots::new();
    context(&thread).state::<CanNotBeWritten>().unwrap();
    let error: SlotError = thread.snapshot().unwrap_err();
    assert_eq!(error.slot(), "test/CanNotBeWritten");
    let debug = format!("{thread:?}");
    assert!(
        debug.contains(Str::from("CanNotBeWritten").as_str()),
        "{debug}"
    );
}
