//! Ending a run, resuming it once, and emitting events into it.

use concentric_core::{
    AgentLayer, CallId, CancelReason, ChatRequest, ChatResponse, Context, EmitError, Error,
    ErrorKind, Event, FinishReason, InterruptId, Message, MessageId, NoTools, OpenRound, Outcome,
    Part, PartKind, Repair, Reply, Role, RoundCall, ToolCallPart, ToolOutcome, ToolResult,
    Transcript, Usage,
};
use futures_util::{FutureExt, StreamExt, stream};
use std::time::{Duration, SystemTime};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A model that never stops sending events.
fn endless() -> impl Service<
    ChatRequest,
    Response = ChatResponse<stream::Repeat<Result<Event, Error>>>,
    Error = Error,
    Future: Send,
> + Clone {
    service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(stream::repeat(Ok(Event::text("more ")))))
    })
}

#[tokio::test]
async fn a_deadline_ends_a_stream_that_never_waits() {
    let agent = AgentLayer::new(NoTools).layer(endless());
    let context = Context::builder()
        .deadline(SystemTime::now() + Duration::from_millis(20))
        .build();
    let request = ChatRequest::user("hi").with_context(context);
    let body = agent.oneshot(request).await.unwrap().body;
    let last = body.collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(last.unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn cancelling_a_parent_ends_nested_loops_that_never_wait() {
    let inner = AgentLayer::new(NoTools).layer(endless());
    let agent = AgentLayer::new(NoTools).layer(inner);
    let parent = Context::new();
    let request = ChatRequest::user("hi").with_context(parent.child().build());
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    for _ in 0..100 {
        body.next().await.unwrap().unwrap();
    }
    parent.cancel(CancelReason::User);
    let rest: Vec<_> = body.collect().await;
    assert!(rest.len() < 200, "{} events after the cancel", rest.len());
    let Some(Ok(Event::Finish(finish))) = rest.last() else {
        unreachable!("a cancelled run finishes");
    };
    let reason = CancelReason::User;
    assert_eq!(finish.outcome, Outcome::Aborted { reason });
}

#[tokio::test]
async fn dropping_a_body_cancels_its_run() {
    let agent = AgentLayer::new(NoTools).layer(endless());
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    body.next().await.unwrap().unwrap();
    drop(body);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
}

fn called(id: &str) -> Part {
    Part::new(PartKind::ToolCall(ToolCallPart::new(
        CallId::new(id),
        "t",
        "{}",
    )))
}

#[tokio::test]
async fn only_one_of_two_attempts_resumes_a_run() {
    let model = service_fn(async |_: ChatRequest| {
        let events = [Ok(Event::finish(FinishReason::Stop, Usage::default()))];
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let open = OpenRound::new(Message::new(Role::Assistant, vec![called("a")])).unwrap();
    let replies = vec![Reply::cancel(InterruptId::new("-/0/a"))];
    let request = ChatRequest::resume_history(Transcript::new(), open, replies);

    let first = agent.clone().oneshot(request.clone()).await.unwrap();
    let second = agent.oneshot(request).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Conflict);
    let answer = first.collect().await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

#[test]
fn a_call_keeps_its_idempotency_key_when_its_round_resumes() {
    let key = |run: &Context, step, position| {
        let call = RoundCall::new(position, ToolCallPart::new(CallId::new("a"), "t", "{}"));
        let round = run.at_round(step, Some(MessageId::new("m")));
        round.at_call(&call).idempotency_key().unwrap()
    };
    let live = key(&Context::new(), 3, 1);
    assert_eq!(key(&Context::new(), 0, 1), live);
    assert_ne!(key(&Context::new(), 0, 2), live);
    assert_eq!(Context::new().idempotency_key(), None);
}

#[test]
fn events_of_the_model_and_its_tools_cannot_be_emitted() {
    let context = Context::new();
    for event in [
        Event::finish(FinishReason::Stop, Usage::default()),
        Event::text("not the model"),
        Event::tool_call(ToolCallPart::new(CallId::new("a"), "t", "{}")),
        Event::Part(Box::new(called("a"))),
    ] {
        assert_eq!(context.emit(event), Err(EmitError::NotAllowed));
    }
}

#[test]
fn a_call_with_a_result_in_its_message_is_closed() {
    let result = ToolResult::new(CallId::new("a"), "t", ToolOutcome::done("ok"));
    let message = Message::new(
        Role::Assistant,
        vec![called("a"), Part::new(PartKind::ToolResult(result))],
    );
    for repair in [Repair::Refuse, Repair::Close] {
        let (transcript, open) = Transcript::from_history([message.clone()], repair).unwrap();
        assert!(open.is_none());
        assert_eq!(transcript.last().unwrap().results().len(), 1);
    }
}

#[tokio::test]
async fn the_transcript_of_a_run_without_a_finish_is_kept_on_request() {
    let agent = AgentLayer::new(NoTools).layer(endless());
    for is_kept in [false, true] {
        let request = ChatRequest::user("hi");
        let closed = is_kept.then(|| request.context.keep_closed_transcript());
        // A later request for the same run.
        let context = request.context.clone();
        let mut body = agent.clone().oneshot(request).await.unwrap().body;
        while !matches!(body.next().await, Some(Ok(Event::TextDelta(_)))) {}
        assert!(closed.as_ref().is_none_or(|closed| closed.get().is_none()));
        drop(body);
        let closed = closed.unwrap_or_else(|| context.keep_closed_transcript());
        let texts = closed.get().map(|closed| {
            let texts = closed.iter().map(|turn| turn.as_message().text());
            texts.collect::<Vec<_>>()
        });
        let expected = is_kept.then(|| vec!["hi".to_owned(), "more ".to_owned()]);
        assert_eq!(texts, expected);
    }
}

#[tokio::test]
async fn the_transcript_of_a_run_that_finishes_is_in_its_finish() {
    let model = service_fn(async |_: ChatRequest| {
        let finish = Event::finish(FinishReason::Stop, Usage::default());
        let items = [Ok(Event::text("hi")), Ok(finish)];
        Ok::<_, Error>(ChatResponse::new(stream::iter(items)))
    });
    let request = ChatRequest::user("hi");
    let closed = request.context.keep_closed_transcript();
    let response = AgentLayer::new(NoTools).layer(model).oneshot(request).await;
    let answer = response.unwrap().collect().await.unwrap();
    assert!(answer.finish.transcript.is_some());
    assert!(closed.get().is_none());
}

#[tokio::test]
async fn a_run_whose_future_fails_or_is_dropped_has_no_transcript() {
    let model = service_fn(async |_: ChatRequest| {
        tokio::task::yield_now().await;
        Err::<ChatResponse<stream::Empty<_>>, _>(Error::new(ErrorKind::Server, "down"))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let request = ChatRequest::user("hi");
    let closed = request.context.keep_closed_transcript();
    let mut dropped = Box::pin(agent.clone().oneshot(request.clone()));
    assert!(dropped.as_mut().now_or_never().is_none());
    drop(dropped);
    assert!(closed.get().is_none());
    agent.oneshot(request).await.map(drop).unwrap_err();
    assert!(closed.get().is_none());
}
