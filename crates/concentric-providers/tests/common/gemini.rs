//! What the tests of Gemini share.

use super::{CANARY, End, Script, read_body};
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_providers::{ApiKey, GeminiLayer, gemini::GenerateContent, model};
use http_body_util::Full;
use std::{convert::Infallible, sync::Mutex};
use tower::{Layer, ServiceExt, service_fn};

pub fn layer() -> GeminiLayer {
    GeminiLayer::new("gemini-3-test", ApiKey::new(CANARY))
}

pub async fn call(
    layer: &GeminiLayer,
    response: http::Response<Script>,
) -> Result<ChatResponse<model::Body<Script, GenerateContent>>, Error> {
    let response = Mutex::new(Some(response));
    let http = service_fn(|_: http::Request<Full<Bytes>>| {
        let response = response.lock().unwrap().take().unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    });
    layer.layer(http).oneshot(ChatRequest::user("hi")).await
}

pub async fn read_script(layer: &GeminiLayer, script: Script) -> (Vec<Event>, Option<Error>) {
    match call(layer, http::Response::new(script)).await {
        Ok(response) => read_body(response.body).await,
        Err(error) => (Vec::new(), Some(error)),
    }
}

pub async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

/// An event of a stream, whose candidate says these parts.
pub fn parts(parts: &str) -> String {
    format!(
        "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{parts}],\"role\":\"model\"}},\"index\":0}}]}}\r\n\r\n"
    )
}

pub fn text(text: &str) -> String {
    parts(&format!(r#"{{"text":"{text}"}}"#))
}

pub fn finish(reason: &str) -> String {
    format!(
        "data: {{\"candidates\":[{{\"finishReason\":\"{reason}\",\"index\":0}}],\"usageMetadata\":{{\"promptTokenCount\":3,\"candidatesTokenCount\":2,\"totalTokenCount\":5}}}}\r\n\r\n"
    )
}
