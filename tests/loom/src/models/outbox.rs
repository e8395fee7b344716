//! The outbox, with room for one event.

use super::source::{EmitError, Outbox};
use crate::{block_on, poll_once};
use concentric_core::{CustomEvent, Event};
use loom::thread;
use std::{future::poll_fn, pin::pin, sync::Arc};

fn event(name: &'static str) -> Event {
    Event::Custom(Box::new(CustomEvent::new(name, serde_json::Value::Null)))
}

/// Waits for the next event, and returns its name.
fn next(outbox: &Outbox) -> String {
    match block_on(poll_fn(|cx| outbox.poll_pop(cx.waker()))) {
        Event::Custom(custom) => custom.name.to_string(),
        _ => String::new(),
    }
}

pub(crate) fn pushes_wake_the_driver() {
    let outbox = Arc::new(Outbox::default());
    let emitter = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || assert_eq!(outbox.push(event("a")), Ok(()))
    });
    assert_eq!(next(&outbox), "a");
    emitter.join().unwrap();
}

pub(crate) fn senders_wait_for_room() {
    let outbox = Arc::new(Outbox::default());
    let senders = ["a", "b"].map(|name| {
        let outbox = Arc::clone(&outbox);
        thread::spawn(move || assert_eq!(block_on(outbox.send(event(name))), Ok(())))
    });
    let mut seen = [next(&outbox), next(&outbox)];
    seen.sort();
    assert_eq!(seen, ["a", "b"]);
    for sender in senders {
        sender.join().unwrap();
    }
    assert!(!outbox.is_filled());
}

pub(crate) fn a_dropped_sender_passes_on_its_room() {
    let outbox = Arc::new(Outbox::default());
    assert_eq!(outbox.push(event("first")), Ok(()));
    let leaver = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || {
            let _ = poll_once(pin!(outbox.send(event("leaver"))));
        }
    });
    let sender = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || assert_eq!(block_on(outbox.send(event("b"))), Ok(()))
    });
    while next(&outbox) != "b" {}
    leaver.join().unwrap();
    sender.join().unwrap();
}

pub(crate) fn close_ends_senders() {
    let outbox = Arc::new(Outbox::default());
    assert_eq!(outbox.push(event("first")), Ok(()));
    let sender = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || block_on(outbox.send(event("a")))
    });
    outbox.close();
    assert_eq!(sender.join().unwrap(), Err(EmitError::Ended));
    assert!(!outbox.is_filled());
}

pub(crate) fn a_call_of_the_driver_is_kept() {
    let outbox = Arc::new(Outbox::default());
    assert_eq!(outbox.push(event("a")), Ok(()));
    let caller = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || outbox.call_driver()
    });
    assert!(outbox.pop().is_some());
    caller.join().unwrap();
    assert!(outbox.is_filled());
}

pub(crate) fn the_flag_reports_pending_events() {
    let outbox = Arc::new(Outbox::default());
    let emitter = thread::spawn({
        let outbox = Arc::clone(&outbox);
        move || assert_eq!(outbox.push(event("a")), Ok(()))
    });
    let _ = outbox.pop();
    emitter.join().unwrap();
    assert_eq!(outbox.is_filled(), outbox.pop().is_some());
}
