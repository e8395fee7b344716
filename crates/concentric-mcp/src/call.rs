//! Calls of a server's tools.

#[cfg(feature = "oauth")]
use crate::{authorization, oauth::AuthorizationRequired};
use crate::{
    elicit,
    http_client::transport_error,
    input::{Input, provide},
    link::Link,
    pending::{PROGRESS, Progress},
    result,
    supervisor::Server,
    text,
};
use concentric_core::{Context, CustomEvent, Error, ErrorKind, ToolCall, ToolOutcome, ToolSpec};
use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResponse, CancelledNotificationParam,
        ClientRequest, InputResponses, JsonObject, ProgressNotificationParam, ProgressToken,
        RequestId, ServerResult,
    },
    service::{PeerRequestOptions, ServiceError},
    transport::streamable_http_client::StreamableHttpError,
};
use serde_json::{Value, json};
use std::{error::Error as StdError, time::Duration};
use tokio::time::{Instant, sleep_until};

/// The shortest time between two of them.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The end of a call that was sent.
enum Sent {
    Answered(Box<CallToolResponse>),
    /// The server reports an error of the protocol.
    Rejected(String),
    /// The server has not executed the call.
    NotTaken,
    /// It has not executed the call without the authorization of a user.
    #[cfg(feature = "oauth")]
    Unauthorized(AuthorizationRequired),
    /// There is no answer, so that the server may have executed the call.
    Lost(String),
}

/// Makes a call, with the answers to the server's questions if the call was suspended for them.
pub(crate) async fn call(
    server: &Server,
    remote: &str,
    spec: &ToolSpec,
    call: ToolCall,
) -> Result<ToolOutcome, Error> {
    let may_run_again = call.spec().is_some_and(|spec| spec.may_run_again());
    #[cfg(feature = "oauth")]
    if let Err(why) = authorization::finish(server, &call).await {
        return Ok(ToolOutcome::failed(why));
    }
    let (mut params, mut rounds) = params(remote, &call)?;
    let unanswered = |why: String| match may_run_again {
        true => ToolOutcome::failed(why),
        false => ToolOutcome::failed(why).into_indeterminate(),
    };
    let (mut is_repeated, mut loss) = (false, None);
    loop {
        // The outcome of an attempt that was lost is still that of the call.
        let link = match server.link().await {
            Ok(link) => link,
            Err(error) => {
                #[cfg(feature = "oauth")]
                if loss.is_none()
                    && let Some(required) = AuthorizationRequired::of(&error)
                {
                    return authorization::suspend(required, &call, &params, rounds);
                }
                return Ok(loss.map_or_else(|| unavailable(server, &error), unanswered));
            }
        };
        // The tools may have been listed again with this connection.
        if let Err(why) = server.check(spec) {
            return Ok(loss.map_or_else(|| ToolOutcome::failed(why), unanswered));
        }
        let name = server.config.name.as_str();
        match send(server, &link, params.clone(), &call.context).await {
            Sent::Answered(answer) => match *answer {
                CallToolResponse::Complete(answer) => {
                    return Ok(result::outcome(name, call.name(), answer));
                }
                CallToolResponse::InputRequired(required) => {
                    match provide(server, &call, required, rounds).await {
                        Input::Answered(responses, state) => {
                            rounds += 1;
                            params.input_responses = Some(responses);
                            params.request_state = state;
                            // Another attempt, which may be lost, too.
                            (is_repeated, loss) = (false, None);
                            continue;
                        }
                        Input::End(end) => return end,
                    }
                }
                _ => {
                    let why = "it started a background task, which is not supported.";
                    return Ok(result::failed(name, why).into_indeterminate());
                }
            },
            Sent::Rejected(why) => return Ok(result::failed(name, &why)),
            #[cfg(feature = "oauth")]
            Sent::Unauthorized(required) => {
                return match loss {
                    Some(why) => Ok(unanswered(why)),
                    None => authorization::suspend(&required, &call, &params, rounds),
                };
            }
            Sent::NotTaken if !is_repeated => {}
            Sent::NotTaken => return Ok(loss.map_or_else(|| not_run(name), unanswered)),
            Sent::Lost(why) if may_run_again && !is_repeated && link.lost.is_cancelled() => {
                loss = Some(why);
            }
            Sent::Lost(why) => return Ok(unanswered(why)),
        }
        is_repeated = true;
    }
}

fn unavailable(server: &Server, error: &Error) -> ToolOutcome {
    let name = server.config.name.as_str();
    let error = error.to_string();
    tracing::warn!(target: "concentric::mcp", parent: None, server = name, error, "a server is not available");
    not_run(name)
}

fn not_run(name: &str) -> ToolOutcome {
    ToolOutcome::failed(format!(
        "The call was not run: the MCP server `{name}` is not available. Try again later."
    ))
}

/// The parameters of a call, and the number of its rounds of questions so far.
fn params(remote: &str, call: &ToolCall) -> Result<(CallToolRequestParams, u64), Error> {
    let arguments: JsonObject =
        serde_json::from_str(call.arguments().as_str()).map_err(|error| {
            Error::new(
                ErrorKind::InvalidRequest,
                "the arguments are not a JSON object",
            )
            .with_source(error)
        })?;
    let mut params = CallToolRequestParams::new(remote.to_owned()).with_arguments(arguments);
    let Some(resumed) = call.resumed() else {
        return Ok((params, 0));
    };
    let Some(state) = resumed.on.state.as_deref() else {
        return Ok((params, 0));
    };
    // Those that were sent before the call was suspended again.
    let responses = state.get("responses").cloned();
    let mut responses: InputResponses = responses
        .and_then(|it| serde_json::from_value(it).ok())
        .unwrap_or_default();
    for (id, key) in state
        .get("questions")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let reply = resumed
            .replies
            .iter()
            .find(|reply| reply.interrupt_id.as_str() == id);
        let mut asked = resumed.on.interrupts.iter();
        let asked = asked.find(|interrupt| interrupt.id.as_str() == id);
        let form = asked.and_then(|it| it.response_schema.as_deref());
        let answer = serde_json::to_value(elicit::answer(reply, form)).unwrap_or_default();
        responses.insert(key.as_str().unwrap_or_default().to_owned(), answer);
    }
    if !responses.is_empty() {
        params = params.with_input_responses(responses);
    }
    if let Some(opaque) = state.get("state").and_then(Value::as_str) {
        params = params.with_request_state(opaque);
    }
    let rounds = state.get("rounds").and_then(Value::as_u64);
    Ok((params, rounds.unwrap_or_default()))
}

/// Sends a call and waits for its end.
async fn send(
    server: &Server,
    link: &Link,
    params: CallToolRequestParams,
    context: &Context,
) -> Sent {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options();
    let sending = link.calls.sending(context.clone());
    let sent = link.peer.send_request_with_option(request, options).await;
    let Ok(mut handle) = sent else {
        // The connection did not take it.
        link.lost.cancel();
        return Sent::NotTaken;
    };
    let token = handle.progress_token.clone();
    let mut progress = sending.sent(token.clone());
    let mut open = OpenCall {
        link,
        id: Some(handle.id.clone()),
        token,
    };
    let config = &server.config;
    let began = Instant::now();
    let end = began + config.call_timeout;
    let mut idle = began + config.idle_timeout;
    let mut reported = Reports::default();
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut handle.rx => break answer,
            () = link.lost.cancelled() => {
                open.id = None;
                return lost(link);
            }
            Ok(()) = progress.changed() => {
                idle = Instant::now() + config.idle_timeout;
                reported.changed();
            }
            () = sleep_until(reported.next), if reported.is_due => {
                reported.report(&mut progress, context);
            }
            () = sleep_until(end.min(idle)) => {
                let (kind, limit) = match end <= idle {
                    true => ("after", config.call_timeout),
                    false => ("without progress for", config.idle_timeout),
                };
                return Sent::Lost(format!("The tool timed out {kind} {limit:?}."));
            }
        }
    };
    open.id = None;
    match answer {
        Ok(Ok(result)) => match result {
            ServerResult::CallToolResult(result) => Sent::Answered(Box::new(result.into())),
            ServerResult::InputRequiredResult(required) => {
                Sent::Answered(Box::new(required.into()))
            }
            ServerResult::CreateTaskResult(task) => Sent::Answered(Box::new(task.into())),
            _ => Sent::Rejected("its answer is not the result of a tool.".to_owned()),
        },
        Ok(Err(ServiceError::McpError(error))) => {
            Sent::Rejected(text::cut(text::visible(&error.message), 4096))
        }
        Ok(Err(ServiceError::TransportSend(error))) => {
            let server = config.name.as_str();
            tracing::warn!(target: "concentric::mcp", parent: None, server, %error, "a call was not sent, or not answered");
            not_answered(link, &*error.error)
        }
        Ok(Err(_)) | Err(_) => lost(link),
    }
}

/// Classifies an error of the transport.
fn not_answered(link: &Link, error: &(dyn StdError + 'static)) -> Sent {
    match transport_error(error) {
        Some(StreamableHttpError::SessionExpired) => {
            link.lost.cancel();
            Sent::NotTaken
        }
        Some(StreamableHttpError::HttpStatus(error))
            if (400..500).contains(&error.status) && error.status != 408 =>
        {
            Sent::Rejected(format!("it refused the call with status {}.", error.status))
        }
        #[cfg(feature = "oauth")]
        Some(StreamableHttpError::Client(error))
            if let Some(required) = AuthorizationRequired::of(error) =>
        {
            Sent::Unauthorized(required.clone())
        }
        Some(StreamableHttpError::Client(error)) => match (error.kind(), error.code()) {
            (ErrorKind::Authentication | ErrorKind::Permission, _)
            | (_, Some("not_connected" | "no_token")) => Sent::Rejected(format!("{error}.")),
            _ => lost(link),
        },
        _ => lost(link),
    }
}

fn lost(link: &Link) -> Sent {
    // Before the end of the connection is observed elsewhere.
    if link.peer.is_transport_closed() {
        link.lost.cancel();
    }
    Sent::Lost("The connection to the server ended during the call.".to_owned())
}

/// A call without an answer. On drop, the server is notified.
struct OpenCall<'a> {
    link: &'a Link,
    id: Option<RequestId>,
    token: ProgressToken,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.link.calls.remove(&self.token);
        let Some(id) = self.id.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let peer = self.link.peer.clone();
        runtime.spawn(async move {
            let reason = Some("the call was abandoned".to_owned());
            let cancelled = CancelledNotificationParam::new(Some(id), reason);
            let _ = peer.notify_cancelled(cancelled).await;
        });
    }
}

/// The events that report progress.
struct Reports {
    next: Instant,
    is_due: bool,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            next: Instant::now(),
            is_due: false,
        }
    }
}

impl Reports {
    const fn changed(&mut self) {
        self.is_due = true;
    }

    fn report(&mut self, progress: &mut Progress, context: &Context) {
        self.is_due = false;
        self.next = Instant::now() + PROGRESS_INTERVAL;
        let latest = progress.borrow_and_update().clone();
        if let Some(latest) = latest {
            // A consumer that is behind misses progress only.
            let _ = context.emit(event(&latest));
        }
    }
}

fn event(progress: &ProgressNotificationParam) -> CustomEvent {
    let message = progress.message.as_deref().map(text::visible);
    let message = message.map(|message| text::cut(message, 1024));
    let (done, total) = (progress.progress, progress.total);
    CustomEvent::new(
        PROGRESS,
        json!({ "progress": done, "total": total, "message": message }),
    )
}
