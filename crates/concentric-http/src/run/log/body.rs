//! The body of a run whose events are kept.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};

use concentric_core::{Error, ErrorKind, Event, EventStream, panic::catch};
use futures_core::Stream;
use tokio::{runtime::Handle, sync::oneshot, task::AbortHandle};
use tracing::instrument::{Instrument, WithSubscriber};

use super::writer::Writer;

/// The size of translated events, in bytes, at which they are published.
const PIECE: usize = 16 << 10;

/// The maximum number of items between two returns to the runtime.
const ITEMS: usize = 64;

type Item = Option<Result<Event, Error>>;

/// The body of a run.
pub(crate) enum LogBody {
    /// The client reads the log, so that a task drives the run, however slowly the client reads. The body has only
    /// the terminal item.
    Task(Task),
    /// The body has all items.
    Here(EventStream, Box<Writer>),
    Over,
}

/// The task that drives a run. Dropping this value drops the run.
pub(crate) struct Task {
    last: oneshot::Receiver<Item>,
    task: AbortHandle,
}

impl LogBody {
    pub(crate) fn new(body: EventStream, writer: Writer) -> Self {
        let writer = Box::new(writer);
        match Handle::try_current() {
            Ok(runtime) if writer.has_client() => {
                let (sender, last) = oneshot::channel();
                // Logs of the task belong to the span of the request.
                let task = drive(body, writer, sender)
                    .instrument(tracing::Span::current())
                    .with_current_subscriber();
                let task = runtime.spawn(task).abort_handle();
                Self::Task(Task { last, task })
            }
            _ => Self::Here(body, writer),
        }
    }
}

impl Stream for LogBody {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Item> {
        let item = match &mut *self {
            Self::Task(task) => match ready!(Pin::new(&mut task.last).poll(cx)) {
                Ok(last) => last,
                Err(_) => Some(Err(stopped())),
            },
            Self::Here(body, writer) => match ready!(Pin::new(body).poll_next(cx)) {
                Some(Ok(event)) if !event.is_finish() => {
                    // The translator consumes the event.
                    writer.event(event.clone());
                    writer.publish();
                    return Poll::Ready(Some(Ok(event)));
                }
                last => last,
            },
            Self::Over => return Poll::Ready(None),
        };
        // The run is dropped before its end is written.
        if let Self::Here(body, mut writer) = std::mem::replace(&mut *self, Self::Over) {
            drop(body);
            end(&mut writer, &item);
        }
        Poll::Ready(item)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn end(writer: &mut Writer, last: &Item) {
    match last {
        Some(Ok(Event::Finish(finish))) => writer.finish(finish),
        Some(Err(error)) => writer.fail(error),
        _ => writer.truncated(),
    }
}

fn stopped() -> Error {
    let stopped = "the task of the run was stopped, for example by a runtime shutdown";
    Error::new(ErrorKind::Cancelled, stopped)
}

/// Drives a run to its end, and writes its events.
async fn drive(mut body: EventStream, mut writer: Box<Writer>, sender: oneshot::Sender<Item>) {
    let last = poll_fn(|cx| {
        // One `catch` for all items, since each has a cost.
        let polled = catch(|| poll_items(&mut body, &mut writer, cx));
        writer.publish();
        match polled {
            Ok(last) => last,
            Err(panic) => {
                tracing::error!(panic = panic.text(), "run panicked");
                Poll::Ready(Some(Err(panic.error())))
            }
        }
    })
    .await;
    // The run is dropped before its end is written. The drop may panic, too.
    let _ = catch(|| drop(body));
    end(&mut writer, &last);
    drop(writer);
    let _ = sender.send(last);
}

/// Writes all ready items, up to a piece. Returns the terminal item.
fn poll_items(body: &mut EventStream, writer: &mut Writer, cx: &mut Context<'_>) -> Poll<Item> {
    for _ in 0..ITEMS {
        match ready!(Pin::new(&mut *body).poll_next(cx)) {
            Some(Ok(event)) if !event.is_finish() => writer.event(event),
            last => return Poll::Ready(last),
        }
        if writer.len() >= PIECE {
            break;
        }
    }
    // The readers have their turn.
    cx.waker().wake_by_ref();
    Poll::Pending
}
