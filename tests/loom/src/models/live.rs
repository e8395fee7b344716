//! Live interrupts of runs.

use super::source::{AskError, InterruptHub};
use crate::outbox::source::Outbox;
use crate::{Context, block_on, poll_once, run_key::Tenant, stand_in::Token};
use concentric_core::{CustomEvent, Event, Interrupt, InterruptId, Reply, ReplyError};
use loom::thread;
use serde_json::json;
use std::{pin::pin, sync::Arc, time::SystemTime};

fn id() -> InterruptId {
    InterruptId::new("ask")
}

fn context() -> Arc<Context> {
    Arc::new(Context {
        outbox: Outbox::default(),
        late: Token::default(),
    })
}

async fn ask(hub: &InterruptHub, context: &Context) -> Result<Reply, AskError> {
    let question = Interrupt::new(id(), "test");
    let shown = context.send(Event::Custom(Box::new(CustomEvent::new(
        "interrupt",
        json!(question),
    ))));
    let ended = async {
        context.sleep().await;
        AskError::TimedOut
    };
    hub.wait(Tenant, question, None, shown, ended).await
}

fn reply(hub: &InterruptHub, value: usize) -> Result<(), ReplyError> {
    let reply = Reply::resolve(id(), json!(value));
    hub.reply(&Tenant, reply, SystemTime::UNIX_EPOCH)
}

pub(crate) fn an_accepted_reply_is_delivered() {
    let (hub, context) = (InterruptHub::new(), context());
    let asker = thread::spawn({
        let (hub, context) = (hub.clone(), Arc::clone(&context));
        move || block_on(ask(&hub, &context))
    });
    let timer = thread::spawn({
        let context = Arc::clone(&context);
        move || context.late.cancel()
    });
    // A reply is rejected before the interrupt is raised, and after its deadline.
    let accepted = reply(&hub, 1).is_ok();
    timer.join().unwrap();
    let answer = asker.join().unwrap();
    assert_eq!(answer.is_ok(), accepted);
    assert!(hub.interrupts(&Tenant).is_empty());
}

pub(crate) fn one_of_two_replies_is_accepted() {
    let (hub, context) = (InterruptHub::new(), context());
    let repliers = [1, 2].map(|value| {
        let (hub, context) = (hub.clone(), Arc::clone(&context));
        thread::spawn(move || {
            let accepted = reply(&hub, value).is_ok();
            context.late.cancel();
            accepted.then_some(value)
        })
    });
    let answer = block_on(ask(&hub, &context));
    let accepted: Vec<_> = repliers
        .into_iter()
        .filter_map(|replier| replier.join().unwrap())
        .map(|value| json!(value))
        .collect();
    let answers: Vec<_> = answer
        .ok()
        .and_then(|reply| reply.payload)
        .into_iter()
        .collect();
    assert_eq!(answers, accepted);
}

pub(crate) fn a_dropped_interrupt_is_withdrawn() {
    let (hub, context) = (InterruptHub::new(), context());
    let replier = thread::spawn({
        let hub = hub.clone();
        move || drop(reply(&hub, 1))
    });
    let _ = poll_once(pin!(ask(&hub, &context)));
    replier.join().unwrap();
    assert!(hub.interrupts(&Tenant).is_empty());
    // The outbox still holds the first interrupt, so this one waits for room.
    assert!(poll_once(pin!(ask(&hub, &context))).is_pending());
}
