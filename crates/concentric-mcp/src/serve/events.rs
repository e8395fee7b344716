//! Events of calls as messages to the client.
#![expect(deprecated, reason = "log messages, which clients still request")]

use super::question::ask_now;
use crate::pending::PROGRESS;
use concentric_core::{Context, CustomEvent, Event, Interrupt, Reply, store::Tenant};
use futures_util::{StreamExt, stream::FuturesUnordered};
use rmcp::{
    model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam},
    service::{RequestContext, RoleServer},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// The name of the events that are log messages.
const LOG: &str = "mcp.log";

/// The events that wait for the client; further progress and log messages are dropped.
const MAX_EVENTS: usize = 16;
/// The shortest time between two messages with text of an agent.
const TEXT_INTERVAL: Duration = Duration::from_millis(250);
/// The text of an agent that waits for the client (bytes); the rest is dropped.
const MAX_TEXT: usize = 16 << 10;
/// The open questions of a call that runs; further ones are cancelled.
const MAX_QUESTIONS: usize = 4;

pub(super) enum CallEvent {
    Progress(Value),
    Log(Value),
    Question(Box<Interrupt>),
}

/// The events of a call, as they are received.
pub(super) struct CallEvents {
    events: mpsc::Receiver<CallEvent>,
    /// The text of an agent that was not sent yet.
    unsent: watch::Sender<String>,
}

/// Creates the receiver of a call's events, and the function that takes them; the text of an agent only
/// if the client has requested progress.
pub(super) fn channel(
    run: Context,
    has_progress: bool,
) -> (impl FnMut(Event) + Send + 'static, CallEvents) {
    let (sender, events) = mpsc::channel(MAX_EVENTS);
    let unsent = watch::Sender::new(String::new());
    let received = CallEvents {
        events,
        unsent: unsent.clone(),
    };
    let take = move |event| {
        let event = match event {
            Event::Custom(event) => event,
            Event::SubAgent(event) => {
                if has_progress {
                    write(&unsent, &event.event);
                }
                match question(event.event) {
                    Some(event) => event,
                    None => return,
                }
            }
            _ => return,
        };
        let event = match event.name.as_str() {
            PROGRESS => CallEvent::Progress(event.value),
            LOG => CallEvent::Log(event.value),
            "interrupt" => match event.read() {
                Ok(interrupt) => CallEvent::Question(Box::new(interrupt)),
                Err(_) => return,
            },
            _ => return,
        };
        if let Err(error) = sender.try_send(event)
            && let CallEvent::Question(interrupt) = error.into_inner()
        {
            let _ = run.reply(Reply::cancel(interrupt.id));
        }
    };
    (take, received)
}

/// Adds the text of an agent to the text that was not sent yet.
fn write(unsent: &watch::Sender<String>, event: &Event) {
    match event {
        Event::TextDelta(delta) => unsent.send_modify(|text| {
            if text.len().saturating_add(delta.len()) > MAX_TEXT {
                // The client receives the whole answer later.
                "[...]".clone_into(text);
            }
            if delta.len() <= MAX_TEXT {
                text.push_str(delta);
            }
        }),
        // The model writes it again.
        Event::Reset => unsent.send_modify(String::clear),
        _ => {}
    }
}

/// The question or log message of a nested run, at any depth. The progress of its tools is not that of
/// the call.
fn question(event: Event) -> Option<Box<CustomEvent>> {
    match event {
        Event::SubAgent(event) => question(event.event),
        Event::Custom(event) => Some(event).filter(|event| event.name != PROGRESS),
        _ => None,
    }
}

/// Sends the events of a call to the client, log messages from `level` on. Ends with the call.
pub(super) async fn forward(
    CallEvents { mut events, unsent }: CallEvents,
    client: &RequestContext<RoleServer>,
    level: Option<LoggingLevel>,
    run: &Context,
) {
    let token = client.meta.get_progress_token();
    let mut last = None::<f64>;
    let mut questions = FuturesUnordered::new();
    let (mut text, mut next_text) = (unsent.subscribe(), Instant::now());
    loop {
        let written = async {
            // The sender is here, too.
            let _ = text.wait_for(|text| !text.is_empty()).await;
            sleep_until(next_text).await;
        };
        let event = tokio::select! {
            event = events.recv() => event,
            Some(()) = questions.next() => continue,
            () = written => {
                let mut message = String::new();
                unsent.send_modify(|unsent| message = std::mem::take(unsent));
                next_text = Instant::now() + TEXT_INTERVAL;
                Some(CallEvent::Progress(json!({ "message": message })))
            }
        };
        // A client that cannot be reached misses events only.
        match event {
            None => return,
            Some(CallEvent::Progress(value)) => {
                let Some(token) = &token else {
                    continue;
                };
                let number = |name: &str| value.get(name).and_then(Value::as_f64);
                // It must increase with each notification.
                let next = number("progress").filter(|it| last.is_none_or(|last| *it > last));
                let next = next.unwrap_or(last.unwrap_or_default() + 1.0);
                last = Some(next);
                let mut progress = ProgressNotificationParam::new(token.clone(), next);
                progress.total = number("total");
                let message = value.get("message").and_then(Value::as_str);
                progress.message = message.map(str::to_owned);
                let _ = client.peer.notify_progress(progress).await;
            }
            Some(CallEvent::Log(value)) => {
                if let (Some(level), Some(message)) = (level, log_message(value))
                    && severity(message.level) >= severity(level)
                {
                    let _ = client.peer.notify_logging_message(message).await;
                }
            }
            Some(CallEvent::Question(interrupt)) => {
                let open = run.live().interrupts(&Tenant::of(run));
                if !open.iter().any(|it| it.id == interrupt.id) {
                    // It has ended, or waits in another hub, such as that of operators.
                    continue;
                }
                let is_refused = questions.len() >= MAX_QUESTIONS;
                questions.push(async move {
                    let reply = match is_refused {
                        true => None,
                        false => ask_now(&interrupt, client).await.ok(),
                    };
                    // The call may have ended the question.
                    let _ = run.reply(reply.unwrap_or_else(|| Reply::cancel(interrupt.id)));
                });
            }
        }
    }
}

fn log_message(mut value: Value) -> Option<LoggingMessageNotificationParam> {
    let level = serde_json::from_value(value.get_mut("level")?.take()).ok()?;
    let data = value.get_mut("data")?.take();
    let mut message = LoggingMessageNotificationParam::new(level, data);
    let logger = value.get("logger").and_then(Value::as_str);
    message.logger = logger.map(str::to_owned);
    Some(message)
}

const fn severity(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}
