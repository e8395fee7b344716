//! Embeddings, images, speech and transcription.

use crate::common::{CANARY, End, Script, layer, response};
use bytes::Bytes;
use concentric_core::{Context, Error, ErrorKind, MediaSource};
use concentric_providers::{
    ApiKey, Limits, OpenAiLayer, Timeouts,
    activity::{
        ActivityLayer, ActivityRequest, ActivityResponse, EmbeddingRequest, ImageRequest,
        SpeechRequest, TranscriptionRequest,
    },
    openai::Profile,
};
use concentric_test::{
    TestEnvironment,
    cassette::{RecordLayer, ReplayLayer},
};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

type Sent = Arc<Mutex<Option<http::Request<Full<Bytes>>>>>;

/// The response to `request`, and the request that was sent.
async fn call<R: ActivityRequest>(
    layer: &ActivityLayer<R>,
    request: R,
    answer: http::Response<Script>,
) -> (Result<ActivityResponse<R::Output>, Error>, Sent) {
    let sent = Sent::default();
    let (seen, answer) = (Arc::clone(&sent), Arc::new(Mutex::new(Some(answer))));
    let http = service_fn(move |request| {
        *seen.lock().unwrap() = Some(request);
        let answer = answer.lock().unwrap().take().unwrap();
        async { Ok::<_, Infallible>(answer) }
    });
    (layer.layer(http).oneshot(request).await, sent)
}

async fn body(sent: &Sent) -> (http::request::Parts, Bytes) {
    let request = sent.lock().unwrap().take().unwrap();
    let (parts, body) = request.into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}

async fn sent_json(sent: &Sent) -> (String, Value) {
    let (parts, body) = body(sent).await;
    let path = parts.uri.path().to_owned();
    (path, serde_json::from_slice(&body).unwrap())
}

fn ok(body: &Value) -> http::Response<Script> {
    response(200, &[("x-request-id", "r-1")], &body.to_string())
}

#[tokio::test]
async fn s086_embeddings_have_the_order_of_their_inputs() {
    let answer = json!({
        "model": "e-1",
        "data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    });
    let request = EmbeddingRequest::new(["a", "b"]).dimensions(1_u32);
    let (response, sent) = call(&layer().embeddings(), request, ok(&answer)).await;
    let response = response.unwrap();
    assert_eq!(response.output, [[1.0], [2.0]]);
    assert_eq!(response.usage.input_tokens(), Some(7));
    assert_eq!(response.usage.output_tokens(), None);
    assert_eq!(response.model.as_deref(), Some("e-1"));
    assert_eq!(response.request_id.as_deref(), Some("r-1"));
    let (path, sent) = sent_json(&sent).await;
    assert_eq!(path, "/v1/embeddings");
    let expected = json!({
        "model": "gpt-test", "input": ["a", "b"], "encoding_format": "float", "dimensions": 1,
    });
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn embeddings_that_do_not_fit_their_inputs_are_an_error() {
    for data in [
        json!([{"index": 0, "embedding": [1.0]}]),
        json!([{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]),
        json!([{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]),
        json!([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": ["x"]}]),
        json!([]),
        json!(null),
    ] {
        let request = EmbeddingRequest::new(["a", "b"]);
        let (response, _) = call(&layer().embeddings(), request, ok(&json!({"data": data}))).await;
        assert_eq!(response.unwrap_err().kind(), ErrorKind::Protocol, "{data}");
    }
}

#[tokio::test]
async fn images_are_media() {
    let answer = json!({
        "data": [{"b64_json": "AA=="}, {"url": "https://i.test/1"}],
        "output_format": "webp",
        "usage": {"input_tokens": 3, "output_tokens": 9, "total_tokens": 12},
    });
    let mut request = ImageRequest::new("a cat").n(2_u32).size("1024x1024");
    request
        .provider
        .insert("background".into(), "opaque".into());
    let (response, sent) = call(&layer().images(), request, ok(&answer)).await;
    let response = response.unwrap();
    assert_eq!(
        response.output[0].source,
        MediaSource::Base64("AA==".into())
    );
    assert_eq!(response.output[0].media_type.as_deref(), Some("image/webp"));
    assert_eq!(
        response.output[1].source,
        MediaSource::Url("https://i.test/1".into())
    );
    assert_eq!(response.usage.output_tokens(), Some(9));
    let (path, sent) = sent_json(&sent).await;
    assert_eq!(path, "/v1/images/generations");
    let expected = json!({
        "model": "gpt-test", "prompt": "a cat", "n": 2, "size": "1024x1024",
        "background": "opaque",
    });
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn speech_is_the_bytes_of_the_response() {
    let audio = response(200, &[("content-type", "audio/wav")], "RIFF");
    let request = SpeechRequest::new("hi", "alloy")
        .response_format("wav")
        .model("t-2");
    let (spoken, sent) = call(&layer().speech(), request, audio).await;
    let spoken = spoken.unwrap();
    assert_eq!(spoken.output, "RIFF");
    assert_eq!(spoken.media_type.as_deref(), Some("audio/wav"));
    let (path, sent) = sent_json(&sent).await;
    assert_eq!(path, "/v1/audio/speech");
    let expected =
        json!({"model": "t-2", "input": "hi", "voice": "alloy", "response_format": "wav"});
    assert_eq!(sent, expected);

    // Not audio.
    let json = [("content-type", "application/json")];
    for body in [r#"{"error": {"message": "busy"}}"#, "{}"] {
        let request = SpeechRequest::new("hi", "alloy");
        let (spoken, _) = call(&layer().speech(), request, response(200, &json, body)).await;
        assert_eq!(spoken.unwrap_err().code(), Some("no_audio"));
    }
    for media_type in ["text/html", "Application/JSON", "application/problem+json"] {
        let page = [("content-type", media_type)];
        let request = SpeechRequest::new("hi", "alloy");
        let answer = response(200, &page, "<p>Sign in</p>");
        let (spoken, _) = call(&layer().speech(), request, answer).await;
        assert!(spoken.is_err(), "{media_type}");
    }
    let empty = response(200, &[], "");
    let (spoken, _) = call(&layer().speech(), SpeechRequest::new("hi", "v"), empty).await;
    assert_eq!(spoken.unwrap_err().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn a_transcription_is_sent_as_a_form() {
    let environment = TestEnvironment::new();
    let context = || {
        let builder = Context::builder();
        builder.environment(environment.environment()).build()
    };
    let answer = json!({"text": "Hello.", "usage": {"type": "duration", "seconds": 2}});
    let request = |audio: Vec<u8>| TranscriptionRequest::new(audio, "a.wav").language("en");
    let request_in = |audio: Vec<u8>| request(audio).with_context(context());
    let (response, sent) = call(
        &layer().transcription(),
        request_in(vec![0, 13, 10, 255]),
        ok(&answer),
    )
    .await;
    let response = response.unwrap();
    assert_eq!(response.output, "Hello.");
    assert_eq!(response.usage.input_tokens(), None);
    let (parts, form) = body(&sent).await;
    assert_eq!(parts.uri.path(), "/v1/audio/transcriptions");
    let content_type = parts.headers["content-type"].to_str().unwrap();
    let boundary = content_type
        .strip_prefix("multipart/form-data; boundary=")
        .unwrap();
    let form = form.to_vec();
    let text = String::from_utf8_lossy(&form);
    assert_eq!(text.matches(boundary).count(), 4, "{text}");
    assert!(text.contains("name=\"language\"\r\n\r\nen\r\n"), "{text}");
    assert!(
        text.contains("name=\"model\"\r\n\r\ngpt-test\r\n"),
        "{text}"
    );
    assert!(text.contains("filename=\"a.wav\""), "{text}");
    let audio = [b"\r\n\r\n".as_slice(), &[0, 13, 10, 255], b"\r\n--"].concat();
    assert!(form.windows(audio.len()).any(|bytes| bytes == audio));
}

#[tokio::test]
async fn a_request_without_content_is_refused_before_it_is_sent() {
    async fn refused<R: ActivityRequest>(layer: ActivityLayer<R>, request: R) {
        let http = service_fn(async |_: http::Request<Full<Bytes>>| {
            Err::<http::Response<Script>, _>(Error::new(ErrorKind::Other, "sent"))
        });
        let Err(error) = layer.layer(http).oneshot(request).await else {
            panic!("accepted");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    refused(layer().embeddings(), EmbeddingRequest::new([""; 0])).await;
    refused(layer().embeddings(), EmbeddingRequest::new([""])).await;
    refused(layer().images(), ImageRequest::new("")).await;
    refused(layer().images(), ImageRequest::new("x").n(0_u32)).await;
    refused(layer().speech(), SpeechRequest::new("", "v")).await;
    refused(
        layer().transcription(),
        TranscriptionRequest::new("", "a.wav"),
    )
    .await;
    refused(
        layer().transcription(),
        TranscriptionRequest::new("x", "a\".wav"),
    )
    .await;
    let groq = OpenAiLayer::profile(Profile::GROQ, "m", Some(ApiKey::new("k"))).embeddings();
    assert!(!groq.is_supported());
    refused(groq, EmbeddingRequest::new(["x"])).await;
    assert!(layer().embeddings().is_supported());
}

#[tokio::test]
async fn errors_are_those_of_a_model() {
    let request = || EmbeddingRequest::new(["a"]);
    let limited = response(
        429,
        &[("retry-after", "3")],
        r#"{"error": {"message": "slow down"}}"#,
    );
    let (result, _) = call(&layer().embeddings(), request(), limited).await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));

    let echo = response(401, &[], &json!({"error": {"message": CANARY}}).to_string());
    let (result, _) = call(&layer().embeddings(), request(), echo).await;
    assert!(!format!("{:?}", result.unwrap_err()).contains(CANARY));

    let broken = http::Response::new(Script::new(["{"], End::Broken));
    let (result, _) = call(&layer().embeddings(), request(), broken).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Connection);
    let (result, _) = call(
        &layer().embeddings(),
        request(),
        response(200, &[], "<html>"),
    )
    .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn a_response_of_the_maximum_size_is_read_and_a_larger_one_is_not() {
    let text = |bytes: usize| {
        response(
            200,
            &[],
            &json!({"text": "x".repeat(bytes - 11)}).to_string(),
        )
    };
    let mut limits = Limits::default();
    limits.response = 100;
    let layer = layer().limits(limits).transcription();
    let request = || TranscriptionRequest::new("x", "a.wav");
    assert!(call(&layer, request(), text(100)).await.0.is_ok());
    let error = call(&layer, request(), text(101)).await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[tokio::test(start_paused = true)]
async fn a_silent_service_times_out() {
    let silent = http::Response::new(Script::new([""; 0], End::Silent));
    let timeouts = Timeouts::off().idle(Duration::from_secs(2));
    let layer = layer().timeouts(timeouts).embeddings();
    let (result, _) = call(&layer, EmbeddingRequest::new(["a"]), silent).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn a_recorded_activity_is_replayed() {
    let path = std::env::temp_dir().join(format!("activity-{}.jsonl", std::process::id()));
    let http = service_fn(async |_: http::Request<Full<Bytes>>| {
        let answer = json!({"data": [{"embedding": [1.0]}]});
        Ok::<_, Infallible>(http::Response::new(Full::from(answer.to_string())))
    });
    let recorder = RecordLayer::new(&path);
    let service = ServiceBuilder::new()
        .layer(layer().embeddings())
        .layer(recorder.clone());
    let live = service
        .service(http)
        .oneshot(EmbeddingRequest::new(["a"]))
        .await
        .unwrap();
    recorder.save().unwrap();
    let replay = ReplayLayer::load(&path).unwrap();
    let service = ServiceBuilder::new()
        .layer(layer().embeddings())
        .layer(replay.clone());
    let again = service
        .service(())
        .oneshot(EmbeddingRequest::new(["a"]))
        .await
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(live, again);
    assert_eq!(replay.unused(), 0);
}
