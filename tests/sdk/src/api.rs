use bytes::Bytes;
use concentric_core::{Answer, BoxModel, ChatRequest, Error, ErrorKind, PartKind};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
    activity::ModerationRequest,
};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};
use tower::{Layer, ServiceExt, service_fn};

/// The APIs, each with a model, because the request may depend on it.
pub(crate) const APIS: &[(&str, &str)] = &[
    ("anthropic-messages", "claude-opus-4-8"),
    ("gemini-generate", "gemini-3.5-flash"),
    ("ollama-chat", "qwen3"),
    ("openai-chat", "gpt-5.5"),
    (MODERATIONS, "omni-moderation-latest"),
    ("openai-responses", "gpt-5.5"),
];

/// An API that judges a conversation and does not continue it.
pub(crate) const MODERATIONS: &str = "openai-moderations";

/// The API key, which the vendor's SDK uses as well.
const KEY: &str = "the-key";

/// Calls `api`, which returns `answer` or an error, and returns the request that was sent.
pub(crate) async fn call(
    api: &str,
    stream: bool,
    answer: Option<&Value>,
    request: ChatRequest,
) -> (Result<Answer, Error>, Option<Value>) {
    let (status, answer) = match answer {
        Some(answer) => (200, answer.to_string()),
        None => (400, String::from("{}")),
    };
    let sent = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&sent);
    let http = service_fn(move |request: http::Request<Full<Bytes>>| {
        let (seen, answer) = (Arc::clone(&seen), answer.clone());
        async move {
            let read = read(request).await;
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            let mut response = http::Response::new(Full::<Bytes>::from(answer));
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
            Ok::<_, Infallible>(response)
        }
    });
    let key = ApiKey::new(KEY);
    let named = APIS.iter().find(|(name, _)| *name == api);
    let name = named.map_or("", |(_, model)| *model);
    let model = match api {
        "anthropic-messages" => {
            let layer = AnthropicLayer::new(name, key);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "gemini-generate" => {
            let layer = GeminiLayer::new(name, key);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "ollama-chat" => {
            let layer = OllamaLayer::new(name);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "openai-chat" => {
            let layer = OpenAiLayer::new(name, key);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "openai-responses" => {
            let layer = OpenAiResponsesLayer::new(name, key);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        MODERATIONS => {
            let service = OpenAiLayer::new(name, key).moderation().layer(http);
            let error = match service.oneshot(to_moderate(&request)).await {
                Ok(_) => Error::new(ErrorKind::Other, "moderation has no answer"),
                Err(error) => error,
            };
            let sent = sent.lock().unwrap_or_else(PoisonError::into_inner).take();
            return (Err(error), sent);
        }
        _ => {
            return (
                Err(Error::new(ErrorKind::Configuration, "no such API")),
                None,
            );
        }
    };
    let result = match model.oneshot(request).await {
        Ok(response) => response.collect().await.map_err(Error::from),
        Err(error) => Err(error),
    };
    let sent = sent.lock().unwrap_or_else(PoisonError::into_inner).take();
    (result, sent)
}

/// The texts and the images of a conversation.
fn to_moderate(request: &ChatRequest) -> ModerationRequest {
    let parts = (request.transcript.iter()).flat_map(|turn| &turn.as_message().parts);
    let parts: Vec<&PartKind> = parts.map(|part| &part.kind).collect();
    let texts = parts.iter().filter_map(|part| match part {
        PartKind::Text(text) => Some(text.clone()),
        _ => None,
    });
    let images = parts.iter().filter_map(|part| match part {
        PartKind::Image(image) => Some(image.clone()),
        _ => None,
    });
    ModerationRequest::new(texts).images(images)
}

/// Converts a request to JSON.
async fn read(request: http::Request<Full<Bytes>>) -> Value {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await;
    let body = body.to_bytes();
    let headers: BTreeMap<&str, String> = (parts.headers.iter())
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str(), value.into_owned())
        })
        .collect();
    // The bytes are passed on unchanged, and the reader parses them.
    json!({
        "method": parts.method.as_str(),
        "target": parts.uri.path_and_query().map(|target| target.as_str()),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    })
}
