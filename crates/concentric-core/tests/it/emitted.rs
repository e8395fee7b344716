//! Events that are emitted into a run, and the tasks that they wake.

use concentric_core::{
    AgentLayer, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Context, CustomEvent,
    EmitError, Error, Event, FinishReason, NoTools, RequestId, RoundCall, StreamId, ThreadId,
    ToolCallPart, Usage,
};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{
    future::{pending, poll_fn},
    sync::Arc,
    task::Poll,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt, service_fn};

fn note(n: u32) -> Event {
    Event::Custom(Box::new(CustomEvent::new("note", json!(n))))
}

fn state(n: u32) -> Event {
    Event::State(Arc::new(json!(n)))
}

/// Takes all events that wait for the consumer.
fn emitted(context: &Context) -> Vec<Event> {
    let mut emitted = task::spawn(poll_fn(|cx| context.poll_emitted(cx)));
    std::iter::from_fn(|| match emitted.poll() {
        Poll::Ready(event) => Some(event),
        Poll::Pending => None,
    })
    .collect()
}

#[test]
fn a_state_replaces_the_unread_state_before_it() {
    let context = Context::new();
    for event in [state(1), state(2), note(1), state(3), state(4), note(2)] {
        context.emit(event).unwrap();
    }
    assert_eq!(emitted(&context), [state(2), note(1), state(4), note(2)]);
    context.emit(state(5)).unwrap();
    assert_eq!(emitted(&context), [state(5)]);
}

#[test]
fn at_most_eight_states_wait_for_the_consumer() {
    let context = Context::new();
    for n in 0..1016 {
        context.emit(note(n)).unwrap();
        context.emit(state(n)).unwrap();
    }
    assert_eq!(context.emit(note(0)), Err(EmitError::Full));
    context.emit(state(1016)).unwrap();
    let events = emitted(&context);
    let states: Vec<&Event> = events
        .iter()
        .filter(|it| matches!(it, Event::State(_)))
        .collect();
    assert_eq!(states.len(), 8);
    assert_eq!(events.last(), Some(&state(1016)));
    // The first states were not replaced.
    let first: Vec<Event> = (0..7).flat_map(|n| [note(n), state(n)]).collect();
    assert!(events.starts_with(&first), "{events:?}");
}

#[test]
fn only_a_state_that_would_be_replaced_is_taken() {
    let context = Context::new();
    assert_eq!(context.take_emitted_state(), None);
    context.emit(state(1)).unwrap();
    context.emit(note(1)).unwrap();
    assert_eq!(context.take_emitted_state(), None);
    context.emit(state(2)).unwrap();
    assert_eq!(context.take_emitted_state().as_deref(), Some(&json!(2)));
    assert_eq!(emitted(&context), [state(1), note(1)]);
    context.emit(state(3)).unwrap();
    assert!(context.take_emitted_state().is_some());
    assert_eq!(emitted(&context), []);
}

#[test]
fn a_driver_is_woken_after_a_cancel_without_events() {
    let context = Context::new();
    context.cancel(CancelReason::User);
    let mut emitted = task::spawn(poll_fn(|cx| context.poll_emitted(cx)));
    assert_pending!(emitted.poll());
    assert!(!emitted.is_woken());
    context.emit(note(1)).unwrap();
    assert!(emitted.is_woken());
    assert_eq!(assert_ready!(emitted.poll()), note(1));
}

#[test]
fn a_driver_that_polls_without_events_is_still_woken() {
    let context = Context::new();
    let mut emitted = task::spawn(poll_fn(|cx| context.poll_emitted(cx)));
    for n in 0..3 {
        assert_pending!(emitted.poll());
        assert_pending!(emitted.poll());
        context.emit(note(n)).unwrap();
        assert!(emitted.is_woken());
        assert_eq!(assert_ready!(emitted.poll()), note(n));
    }
}

/// A model whose first call sends one event and then waits, and whose other calls never answer.
fn waits_after_its_first_word() -> BoxModel {
    BoxModel::new(service_fn(|request: ChatRequest| async move {
        if !request.tools.is_empty() {
            pending::<()>().await;
        }
        let first = stream::iter([Ok::<_, Error>(Event::text("Well."))]);
        Ok::<_, Error>(ChatResponse::new(first.chain(stream::pending())))
    }))
}

#[test]
fn a_second_attempt_does_not_take_the_bodys_wake() {
    let agent = AgentLayer::new(NoTools).layer(waits_after_its_first_word());
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut second = request.clone();
    let spec = concentric_core::ToolSpec::new("look", "", json!({}));
    second.tools.push(std::sync::Arc::new(spec));

    let mut first = task::spawn(agent.clone().oneshot(request));
    let mut body = task::spawn(assert_ready!(first.poll()).unwrap().body);
    for _ in 0..2 {
        assert!(matches!(body.poll_next(), Poll::Ready(Some(Ok(_)))));
    }
    assert_pending!(body.poll_next());
    // A hedge makes the second attempt in a task of its own.
    let mut second = task::spawn(agent.oneshot(second));
    assert_pending!(second.poll());
    context.emit(note(1)).unwrap();
    assert!(body.is_woken());
    let event = assert_ready!(body.poll_next()).unwrap().unwrap();
    assert_eq!(event, note(1));
}

#[test]
fn a_cancelled_run_stops_reading_its_model() {
    let answer = |_: ChatRequest| async {
        let text = (0..10).map(|_| Ok::<_, Error>(Event::text("more ")));
        let end = [Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1)))];
        Ok::<_, Error>(ChatResponse::new(stream::iter(text.chain(end))))
    };
    let agent = AgentLayer::new(NoTools).layer(BoxModel::new(service_fn(answer)));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut first = task::spawn(agent.oneshot(request));
    let mut body = task::spawn(assert_ready!(first.poll()).unwrap().body);
    for _ in 0..3 {
        assert_ready!(body.poll_next()).unwrap().unwrap();
    }
    context.emit(note(1)).unwrap();
    context.cancel(CancelReason::User);
    let mut left = Vec::new();
    while let Some(event) = assert_ready!(body.poll_next()) {
        left.push(event.unwrap());
    }
    assert!(left.last().unwrap().is_finish());
    let said = |event: &&Event| matches!(event, Event::TextDelta(_));
    assert_eq!(left.iter().filter(said).count(), 0);
}

#[test]
fn a_context_has_the_id_of_its_call() {
    let context = Context::new();
    assert_eq!(context.call_id(), None);
    let part = ToolCallPart::new(CallId::new("c-1"), "look", "{}");
    let round = context.at_round(0, None);
    assert_eq!(round.call_id(), None);
    let call = round.at_call(&RoundCall::new(2, part));
    assert_eq!(call.call_id(), Some(&CallId::new("c-1")));
    assert_eq!(call.child().build().call_id(), None);
}

#[test]
fn unset_ids_are_created_and_nested_runs_share_them() {
    let context = Context::new();
    let inner = context.child().build();
    // Read inside first, and stable from then on.
    assert_eq!(inner.request_id(), context.request_id());
    assert_eq!(inner.stream_id(), context.stream_id());
    assert_ne!(inner.run_id(), context.run_id());
    assert_ne!(context.request_id(), Context::new().request_id());
    assert_ne!(context.stream_id(), Context::new().stream_id());
    assert!(context.thread_id().is_none());
    let context = Context::builder()
        .thread_id(ThreadId::new("t"))
        .request_id(RequestId::new("r"))
        .stream_id(StreamId::new("s"))
        .build();
    let inner = context.child().build();
    assert_eq!(inner.thread_id(), Some(&ThreadId::new("t")));
    assert_eq!(inner.request_id(), &RequestId::new("r"));
    assert_eq!(inner.stream_id(), &StreamId::new("s"));
    let own = context.child().stream_id(StreamId::new("own")).build();
    assert_eq!(own.stream_id(), &StreamId::new("own"));
}

#[test]
fn the_event_index_counts_the_events_that_were_delivered() {
    let answer = |_: ChatRequest| async {
        let end = Event::finish(FinishReason::Stop, Usage::new(1, 1));
        let events = [Event::text("a"), Event::text("b"), end].map(Ok::<_, Error>);
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    };
    let inner = AgentLayer::new(NoTools).layer(BoxModel::new(service_fn(answer)));
    let agent = AgentLayer::new(NoTools).layer(inner);
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut first = task::spawn(agent.oneshot(request));
    let mut body = task::spawn(assert_ready!(first.poll()).unwrap().body);
    let mut handed = 0;
    assert_eq!(context.event_index(), 0);
    context.emit(note(1)).unwrap();
    while let Some(event) = assert_ready!(body.poll_next()) {
        event.unwrap();
        handed += 1;
        assert_eq!(context.event_index(), handed);
    }
    // The note, the step start, two texts, the step finish, and the finish of the run.
    assert_eq!(handed, 6);
}
