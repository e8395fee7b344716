//! Events of calls as messages to the client.
#![expect(deprecated, reason = "log messages, which clients still request")]

use super::question::ask_now;
use crate::pending::PROGRESS;
use concentric_core::{Context, Event, Interrupt, Reply, store::Tenant};
use futures_util::{StreamExt, stream::FuturesUnordered};
use rmcp::{
    model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam},
    service::{RequestContext, RoleServer},
};
use serde_json::Value;
use tokio::sync::mpsc;

/// The name of the events that are log messages.
const LOG: &str = "mcp.log";

/// The events that wait for the client; further progress and log messages are dropped.
const MAX_EVENTS: usize = 16;
/// The open questions of a call that runs; further ones are cancelled.
const MAX_QUESTIONS: usize = 4;

pub(super) enum CallEvent {
    Progress(Value),
    Log(Value),
    Question(Box<Interrupt>),
}

/// Creates the receiver of a call's events, and the function that takes them.
pub(super) fn channel(
    run: Context,
) -> (
    impl FnMut(Event) + Send + 'static,
    mpsc::Receiver<CallEvent>,
) {
    let (sender, received) = mpsc::channel(MAX_EVENTS);
    let take = move |event| {
        let Event::Custom(event) = event else {
            return;
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

/// Sends the events of a call to the client, log messages from `level` on. Ends with the call.
pub(super) async fn forward(
    mut events: mpsc::Receiver<CallEvent>,
    client: &RequestContext<RoleServer>,
    level: Option<LoggingLevel>,
    run: &Context,
) {
    let token = client.meta.get_progress_token();
    let mut last = None::<f64>;
    let mut questions = FuturesUnordered::new();
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            Some(()) = questions.next() => continue,
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
