//! Recorded answers of models.

use super::body::Live;
use crate::joined::Joined;
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Error, ErrorKind, Event, Finish, ResponseHead, Str,
    durable::{BeforeStep, JournalHandle, Recorded, RecordedError, StepChanges},
    run_state::RunEdits,
};
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};
use tokio::sync::mpsc;
use tower::ServiceExt;
use tower_service::Service;

/// The [code](Error::code) of a model whose answers cannot be recorded.
pub const NOT_A_MODEL: &str = "durable_not_a_model";

/// The answer of a model call.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    // `None` if the call failed before it was answered.
    pub(super) head: Option<Head>,
    pub(super) events: Vec<Event>,
    pub(super) end: AnswerEnd,
    #[serde(default)]
    pub(super) changes: StepChanges,
}

/// The end of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerEnd {
    Finished(Box<Finish>),
    Failed(RecordedError),
    Truncated,
    /// The run did not wait for more, and does not in a replay, which has no end of the answer either.
    Left,
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(super) struct Head {
    provider: Option<Str>,
    model: Option<Str>,
    id: Option<Str>,
    request_id: Option<Str>,
    tools: Option<Arc<[Str]>>,
}

impl Head {
    fn new(head: &ResponseHead) -> Self {
        let ResponseHead {
            provider,
            model,
            id,
            request_id,
            tools,
            ..
        } = head.clone();
        Self {
            provider,
            model,
            id,
            request_id,
            tools,
        }
    }

    pub(super) fn into_head(self) -> ResponseHead {
        let mut head = ResponseHead::default();
        (head.provider, head.model, head.id) = (self.provider, self.model, self.id);
        (head.request_id, head.tools) = (self.request_id, self.tools);
        head
    }
}

/// Calls the model, forwards its events, and returns its answer.
pub(super) async fn record<S, B>(
    inner: S,
    mut request: ChatRequest,
    events: mpsc::Sender<Live>,
) -> Recorded
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    // Inside a step there are no steps.
    request.context.extensions_mut().remove::<JournalHandle>();
    let before = BeforeStep::new(&request.context);
    let mut answer = Answer {
        head: None,
        events: Vec::new(),
        end: AnswerEnd::Truncated,
        changes: StepChanges::default(),
    };
    let called = match before {
        Ok(before) => {
            let mut joined = Joined::default();
            let called = {
                let mut closed = pin!(events.closed());
                let mut call = pin!(call(inner, request, &events, &mut answer, &mut joined));
                // A consumer that is gone stops the step.
                poll_fn(|cx| match closed.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(None),
                    Poll::Pending => call.as_mut().poll(cx).map(Some),
                })
                .await
            };
            let called = called.unwrap_or_else(|| {
                answer.end = AnswerEnd::Left;
                Ok(())
            });
            answer.events = joined.into_events();
            let changes = before.changes().map_err(Error::from);
            called.and_then(|()| changes.map(|changes| answer.changes = changes))
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = called {
        tracing::warn!(parent: None, %error, "a durable model call failed");
        answer.end = AnswerEnd::Failed(RecordedError::new(&error));
    }
    written(&answer)
}

/// The record of `result`.
pub(super) fn written(result: &impl Serialize) -> Recorded {
    // Of the types of a step, only JSON values of the application can fail, which have been read from JSON.
    Recorded::from_serialize(result).unwrap_or_else(|_| Recorded::none())
}

async fn call<S, B>(
    inner: S,
    request: ChatRequest,
    events: &mpsc::Sender<Live>,
    answer: &mut Answer,
    joined: &mut Joined,
) -> Result<(), Error>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    let response = inner.oneshot(request).await;
    let response = response.map_err(|error| Error::from(error.into()))?;
    if response.extensions.get::<RunEdits>().is_some() {
        return Err(not_a_model("edits the run"));
    }
    answer.head = Some(Head::new(&response.head));
    // If the consumer is gone, the caller drops this.
    let _ = events.send(Live::Head(response.head)).await;
    let mut body = pin!(response.body);
    let result = loop {
        match poll_fn(|cx| body.as_mut().poll_next(cx)).await {
            Some(Ok(Event::Finish(finish))) => break Ok(Some(finish)),
            Some(Ok(event)) => {
                joined.push(&event);
                let _ = events.send(Live::Event(event)).await;
            }
            Some(Err(error)) => break Err(error),
            None => break Ok(None),
        }
    };
    match result? {
        Some(finish) if finish.state.is_some() => Err(not_a_model("is interrupted")),
        Some(finish) => {
            answer.end = AnswerEnd::Finished(finish);
            Ok(())
        }
        None => Ok(()),
    }
}

fn not_a_model(what: &str) -> Error {
    let why =
        format!("the answer of a durable model call {what}; put `DurableLayer` further inside");
    Error::new(ErrorKind::Configuration, why).with_code(NOT_A_MODEL)
}
