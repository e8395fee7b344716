//! Readiness of every provider's model: the instance that was ready is called once, immediately.

use crate::common::*;
use bytes::Bytes;
use concentric_core::{CancelReason, ChatRequest, ErrorKind};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use futures_util::FutureExt;
use http_body_util::Full;
use tower::{Layer, Service};
use tower_test::mock;

type Mock = mock::Mock<http::Request<Full<Bytes>>, http::Response<Script>>;
type Handle = mock::Handle<http::Request<Full<Bytes>>, http::Response<Script>>;

/// The model that `layer` creates over a mock service, and the handle of the mock.
fn strict<L, S>(layer: &L) -> (tokio_test::task::Spawn<S>, Handle)
where
    L: Layer<Mock, Service = S>,
    S: Service<ChatRequest>,
{
    let (mock, handle) = mock::pair();
    (tokio_test::task::spawn(layer.layer(mock)), handle)
}

/// `readiness!(module, provider, layer, answer)` tests the models that `layer` creates; the text of
/// the answer is `a`.
macro_rules! readiness {
    ($provider:ident, $name:expr, $layer:expr, $answer:expr) => {
        mod $provider {
            use super::*;

            #[tokio::test]
            async fn readiness_is_forwarded() {
                let (mut service, mut handle) = strict(&$layer);
                handle.allow(0);
                let ready = service.enter(|cx, mut service| service.poll_ready(cx));
                assert!(ready.is_pending());
                handle.allow(1);
                let ready = service.enter(|cx, mut service| service.poll_ready(cx));
                assert!(ready.is_ready());

                // Called immediately, before the future is polled.
                let future = service.call(ChatRequest::user("hi"));
                let (request, reply) = handle.next_request().await.unwrap();
                assert_eq!(request.method(), http::Method::POST);
                let answer = Script::new([$answer], End::Clean);
                reply.send_response(http::Response::new(answer));
                assert_eq!(future.await.unwrap().text().await.unwrap(), "a");
            }

            #[tokio::test]
            async fn a_cancelled_run_sends_no_request() {
                let (mut service, mut handle) = strict(&$layer);
                handle.allow(1);
                let ready = service.enter(|cx, mut service| service.poll_ready(cx));
                assert!(ready.is_ready());
                let request = ChatRequest::user("hi");
                request.context.cancel(CancelReason::User);
                let error = service.call(request).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                assert!(handle.next_request().now_or_never().is_none());
            }

            #[tokio::test]
            async fn a_failed_call_is_a_connection_error() {
                let (mut service, mut handle) = strict(&$layer);
                handle.allow(1);
                let ready = service.enter(|cx, mut service| service.poll_ready(cx));
                assert!(ready.is_ready());
                let future = service.call(ChatRequest::user("hi"));
                let (_, reply) = handle.next_request().await.unwrap();
                reply.send_error("unplugged");
                let error = future.await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Connection);
                assert_eq!(error.provider(), Some($name));
            }

            #[tokio::test]
            async fn a_dropped_future_drops_the_call() {
                let (mut service, mut handle) = strict(&$layer);
                handle.allow(1);
                let ready = service.enter(|cx, mut service| service.poll_ready(cx));
                assert!(ready.is_ready());
                let future = service.call(ChatRequest::user("hi"));
                let (_, reply) = handle.next_request().await.unwrap();
                drop(future);
                reply.send_response(http::Response::new(Script::new([""], End::Clean)));
            }
        }
    };
}

readiness!(
    openai,
    "openai",
    OpenAiLayer::new("gpt-test", ApiKey::new("key")),
    delta(r#"{"content":"a"}"#) + &finish("stop")
);

readiness!(
    responses,
    "openai",
    OpenAiResponsesLayer::new("gpt-test", ApiKey::new("key")),
    r#"{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#
);

readiness!(
    anthropic,
    "anthropic",
    AnthropicLayer::new("claude-test", ApiKey::new("key")),
    r#"{"type":"message","content":[{"type":"text","text":"a"}]}"#
);

readiness!(
    gemini,
    "gcp.gemini",
    GeminiLayer::new("gemini-test", ApiKey::new("key")),
    r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}"#
);

readiness!(
    ollama,
    "ollama",
    OllamaLayer::new("test"),
    r#"{"message":{"role":"assistant","content":"a"},"done":true,"done_reason":"stop"}"#
);
