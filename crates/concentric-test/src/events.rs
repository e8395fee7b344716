//! Reading and asserting the events of a response body.
//!
//! ```
//! use concentric_core::{ChatRequest, Error, ErrorKind};
//! use concentric_test::{ScriptedModel, assert_fails, assert_finishes, shape};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new()
//!     .deltas(["Hel", "lo"])
//!     .then()
//!     .text("Oh")
//!     .error(Error::new(ErrorKind::Server, "it broke"));
//!
//! let answer = model.clone().oneshot(ChatRequest::user("hi")).await?;
//! let (events, finish) = assert_finishes(answer.body).await;
//! assert_eq!(shape(&events), "text text finish");
//! assert_eq!(finish.usage.output_tokens(), Some(1));
//!
//! let answer = model.oneshot(ChatRequest::user("hi")).await?;
//! let (events, error) = assert_fails(answer.body).await;
//! assert_eq!((shape(&events).as_str(), error.kind()), ("text", ErrorKind::Server));
//! # Ok(())
//! # }
//! ```

use concentric_core::{Error, Event, Finish};
use futures_util::{Stream, StreamExt};
use std::{pin::pin, task::Poll};

/// Reads a body up to its terminal item, or to its end if it has none.
pub async fn collect_events<B>(body: B) -> Vec<Result<Event, Error>>
where
    B: Stream<Item = Result<Event, Error>>,
{
    read(body).await.0
}

/// Reads a body like [`collect_events`], and returns any item after the terminal one as well.
pub(crate) async fn read<B>(body: B) -> (Vec<Result<Event, Error>>, Option<Result<Event, Error>>)
where
    B: Stream<Item = Result<Event, Error>>,
{
    let mut body = pin!(body);
    let mut items = Vec::new();
    while let Some(item) = body.next().await {
        let terminal = item.as_ref().map_or(true, Event::is_finish);
        items.push(item);
        if terminal {
            // The consumer does not poll again, so `Pending` is as good as `None`.
            let after = std::future::poll_fn(|cx| match body.as_mut().poll_next(cx) {
                Poll::Ready(after) => Poll::Ready(after),
                Poll::Pending => Poll::Ready(None),
            });
            return (items, after.await);
        }
    }
    (items, None)
}

/// Reads a body that must finish, and returns its events and its [`Finish`].
///
/// # Panics
///
/// Panics if the body fails, ends early, or yields an item after its finish.
pub async fn assert_finishes<B>(body: B) -> (Vec<Event>, Finish)
where
    B: Stream<Item = Result<Event, Error>>,
{
    let (items, after) = read(body).await;
    assert!(
        after.is_none(),
        "an item follows the terminal item: {after:?}"
    );
    let (events, error) = split(items);
    assert!(
        error.is_none(),
        "the body failed after `{}`; expected a finish: {error:?}",
        shape(&events)
    );
    let finish = match events.last() {
        Some(Event::Finish(finish)) => Some(Finish::clone(finish)),
        _ => None,
    };
    let seen = shape(&events);
    let finish = finish.unwrap_or_else(|| fail(&format!("the body ended early after `{seen}`")));
    (events, finish)
}

/// Reads a body that must fail, and returns its events and its error.
///
/// # Panics
///
/// Panics if the body finishes, ends early, or yields an item after its error.
pub async fn assert_fails<B>(body: B) -> (Vec<Event>, Error)
where
    B: Stream<Item = Result<Event, Error>>,
{
    let (items, after) = read(body).await;
    assert!(
        after.is_none(),
        "an item follows the terminal item: {after:?}"
    );
    let (events, error) = split(items);
    let seen = shape(&events);
    let error = error.unwrap_or_else(|| fail(&format!("the body did not fail after `{seen}`")));
    (events, error)
}

/// Reads a body that must end without a terminal item, and returns its events.
///
/// # Panics
///
/// Panics if the body finishes or fails.
pub async fn assert_ends_early<B>(body: B) -> Vec<Event>
where
    B: Stream<Item = Result<Event, Error>>,
{
    let (events, error) = split(read(body).await.0);
    assert!(error.is_none(), "the body failed: {error:?}");
    assert!(
        !events.last().is_some_and(Event::is_finish),
        "the body finished"
    );
    events
}

#[track_caller]
#[expect(clippy::panic, reason = "an assertion")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

fn split(items: Vec<Result<Event, Error>>) -> (Vec<Event>, Option<Error>) {
    let mut events = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Ok(event) => events.push(event),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}

/// Returns the kinds of `events`, in order: `step_start text text step_finish finish`.
///
/// ```
/// use concentric_core::Event;
/// assert_eq!(concentric_test::shape(&[Event::text("a"), Event::Reset]), "text reset");
/// ```
pub fn shape<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    let kinds: Vec<&str> = events.into_iter().map(kind).collect();
    kinds.join(" ")
}

/// Returns the text deltas in `events`, joined.
pub fn text_of<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    events
        .into_iter()
        .filter_map(|event| match event {
            Event::TextDelta(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::StepStart(_) => "step_start",
        Event::TextDelta(_) => "text",
        Event::ReasoningDelta(_) => "reasoning",
        Event::RefusalDelta(_) => "refusal",
        Event::PartEnd(_) => "part_end",
        Event::Part(_) => "part",
        Event::ToolCallStart(_) => "tool_call_start",
        Event::ToolCallDelta(_) => "tool_call_delta",
        Event::ToolCall(_) => "tool_call",
        Event::ToolResult(_) => "tool_result",
        Event::State(_) => "state",
        Event::Custom(_) => "custom",
        Event::StepFinish(_) => "step_finish",
        Event::Resumed => "resumed",
        Event::Reset => "reset",
        Event::TranscriptReplaced(_) => "transcript_replaced",
        Event::Finish(_) => "finish",
        _ => "other",
    }
}
