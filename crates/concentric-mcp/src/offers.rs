//! Parts of the application that it offers to a server: a model, and a list of directories.
#![expect(deprecated, reason = "sampling and roots, which servers still request")]

use crate::{config::Config, limits::McpLimits, text};
use concentric_core::{
    BoxModel, ChatRequest, Context, Error, ErrorKind, FinishReason, Media, MediaSource, Message,
    Part, PartKind, Role, Transcript, Turn,
};
use rmcp::model::{
    ClientCapabilities, CreateMessageRequestParams, CreateMessageResult, ListRootsResult, Root,
    SamplingMessage, SamplingMessageContentBlock as Block,
};
use tower::ServiceExt;

/// The longest answer of a model that a server receives (bytes).
const MAX_ANSWER: usize = 1 << 20;

/// Adds what the application offers to the capabilities of the client.
pub(crate) fn offer(config: &Config, capabilities: &mut ClientCapabilities) {
    capabilities.roots = config.roots.as_ref().map(|_| Default::default());
    capabilities.sampling = config.sampling.as_ref().map(|_| Default::default());
}

/// The directories; `None` if they are not offered.
pub(crate) fn roots(config: &Config) -> Option<ListRootsResult> {
    let roots = config.roots.as_ref()?;
    let roots = roots.iter().map(|uri| Root::new(uri.as_str()));
    Some(ListRootsResult::new(roots.collect()))
}

/// Requests an answer from a model, within a call.
///
/// # Errors
///
/// The text for the server.
pub(crate) async fn sample(
    config: &Config,
    model: BoxModel,
    params: CreateMessageRequestParams,
    context: &Context,
) -> Result<CreateMessageResult, &'static str> {
    let request = request(&config.limits, params, context)?;
    let answered = async {
        let response = model.oneshot(request).await?;
        Ok::<_, Error>(response.collect().await?)
    };
    let answered = tokio::time::timeout(config.answer_timeout, answered).await;
    let answer = answered.unwrap_or_else(|_| {
        let what = "the model did not answer a server in time";
        Err(Error::new(ErrorKind::Timeout, what))
    });
    let answer = answer.map_err(|error| {
        let server = config.name.as_str();
        let error = format!("{error:#}");
        // The server must not read it.
        tracing::warn!(target: "concentric::mcp", parent: None, server, error, "a request of a server for the model failed");
        "the model did not answer"
    })?;
    let name = answer.head.model.as_ref().map_or("", |it| it.as_str());
    let text = text::cut(answer.text(), MAX_ANSWER);
    let message = SamplingMessage::assistant_text(text);
    let stop = match answer.finish.reason {
        FinishReason::Length => CreateMessageResult::STOP_REASON_END_MAX_TOKEN,
        _ => CreateMessageResult::STOP_REASON_END_TURN,
    };
    Ok(CreateMessageResult::new(message, name.to_owned()).with_stop_reason(stop))
}

/// The request of a server, within the limits. It has no tools, and nothing of the run.
fn request(
    limits: &McpLimits,
    params: CreateMessageRequestParams,
    context: &Context,
) -> Result<ChatRequest, &'static str> {
    if params.tools.is_some_and(|tools| !tools.is_empty()) {
        return Err("the model does not call tools for a server");
    }
    let mut bytes = params.system_prompt.as_ref().map_or(0, String::len);
    let mut transcript = Transcript::default();
    for SamplingMessage { role, content, .. } in params.messages {
        let mut parts = Vec::new();
        for block in content.into_vec() {
            let (size, kind) = match block {
                Block::Text(it) => (it.text.len(), PartKind::Text(it.text.into())),
                Block::Image(it) => {
                    let media = Media::new(MediaSource::Base64(it.data.as_str().into()));
                    let media = media.with_media_type(text::visible(&it.mime_type));
                    (it.data.len(), PartKind::Image(media))
                }
                _ => return Err("the model reads only texts and images of a server"),
            };
            bytes = bytes.saturating_add(size);
            parts.push(Part::new(kind));
        }
        let role = match role {
            rmcp::model::Role::User => Role::User,
            rmcp::model::Role::Assistant => Role::Assistant,
        };
        let turn = Turn::message(Message::new(role, parts));
        transcript.push(turn.map_err(|_| "a message is invalid")?);
    }
    if bytes > limits.max_sampling_bytes {
        return Err("the messages for the model are too long");
    }
    if transcript.is_empty() {
        return Err("there is no message for the model");
    }
    let mut request = ChatRequest::new(transcript).with_context(context.child().build());
    if let Some(system) = params.system_prompt {
        request = request.with_system(system);
    }
    let options = request.options_mut();
    options.max_output_tokens = Some(
        params
            .max_tokens
            .clamp(1, limits.max_sampling_tokens.max(1)),
    );
    options.temperature = params.temperature;
    let stop = params.stop_sequences.unwrap_or_default();
    options.stop = stop.into_iter().take(4).map(Into::into).collect();
    Ok(request)
}
