//! Moderation of texts and images.

use crate::common::{CANARY, End, Http, Script, layer, response};
use concentric_core::{Error, ErrorKind, Media, MediaSource, Str};
use concentric_providers::{
    ApiKey, Limits, OpenAiLayer, Timeouts,
    activity::{ActivityResponse, Moderation, ModerationRequest},
    openai::Profile,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt};

const MODEL: &str = "omni-moderation-latest";

/// The categories of `moderation_create_response` in OpenAI's SDK.
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// A result of the service that flags `flagged`, each with the score 0.7.
fn found(flagged: &[&str]) -> Value {
    let of = |value: fn(bool) -> Value| -> Value {
        let all = CATEGORIES.iter();
        let all = all.map(|name| ((*name).to_owned(), value(flagged.contains(name))));
        Value::Object(all.collect())
    };
    json!({
        "flagged": !flagged.is_empty(),
        "categories": of(|is_flagged| is_flagged.into()),
        "category_scores": of(|is_flagged| if is_flagged { 0.7 } else { 0.0001 }.into()),
        "category_applied_input_types": of(|_| json!(["text"])),
    })
}

fn ok(results: &[Value]) -> http::Response<Script> {
    let body = json!({"id": "modr-1", "model": "omni-moderation-2024-09-26", "results": results});
    response(200, &[("x-request-id", "r-1")], &body.to_string())
}

async fn call(
    request: ModerationRequest,
    answer: http::Response<Script>,
) -> Result<ActivityResponse<Vec<Moderation>>, Error> {
    let http = Http::new(answer);
    layer().moderation().layer(http).oneshot(request).await
}

/// The path and the body that are sent for `request`, or the error.
async fn sent(request: ModerationRequest) -> Result<(String, Value), Error> {
    let http = Http::new(response(500, &[], ""));
    let asked = Arc::clone(&http.asked);
    let result = layer().moderation().layer(http).oneshot(request).await;
    let Some(sent) = asked.lock().unwrap().take() else {
        return Err(result.unwrap_err());
    };
    let path = sent.uri().path().to_owned();
    let body = sent.into_body().collect().await.unwrap().to_bytes();
    Ok((path, serde_json::from_slice(&body).unwrap()))
}

fn image(source: MediaSource) -> Media {
    Media::new(source).with_media_type("image/webp")
}

#[tokio::test]
async fn each_text_has_a_result() {
    let answer = ok(&[found(&[]), found(&["violence", "hate/threatening"])]);
    let response = call(ModerationRequest::new(["a", "b"]), answer)
        .await
        .unwrap();
    assert_eq!(
        response.model.as_deref(),
        Some("omni-moderation-2024-09-26")
    );
    assert_eq!(response.request_id.as_deref(), Some("r-1"));
    let [harmless, harmful] = &response.output[..] else {
        panic!("{:?}", response.output);
    };
    assert!(harmless.flagged.is_empty());
    assert_eq!(harmless.scores.len(), CATEGORIES.len());
    assert_eq!(harmful.flagged, ["hate/threatening", "violence"]);
    assert_eq!(
        (harmful.scores["violence"], harmful.scores["hate"]),
        (0.7, 0.0001)
    );
}

#[tokio::test]
async fn texts_are_a_list_and_images_are_parts_beside_them() {
    let (path, body) = sent(ModerationRequest::new(["a", "b"])).await.unwrap();
    assert_eq!(path, "/v1/moderations");
    assert_eq!(body, json!({"model": "gpt-test", "input": ["a", "b"]}));

    let data = image(MediaSource::Base64("AA==".into()));
    let url = Media::new(MediaSource::Url("https://i.test/1".into()));
    // The text of a message that has only images is empty.
    let request = ModerationRequest::new(["a", ""])
        .images([data, url])
        .model(MODEL);
    let (_, body) = sent(request).await.unwrap();
    let input = json!([
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "https://i.test/1"}},
    ]);
    assert_eq!(body, json!({"model": MODEL, "input": input}));

    // Together, they have one result.
    let request =
        ModerationRequest::new(["a", "b"]).images([image(MediaSource::Base64("".into()))]);
    let response = call(request, ok(&[found(&["sexual"])])).await.unwrap();
    assert_eq!(response.output[0].flagged, ["sexual"]);
}

#[tokio::test]
async fn what_cannot_be_judged_is_not_sent() {
    let by_id = || image(MediaSource::Id("file-1".into()));
    for request in [
        ModerationRequest::new([""; 0]),
        ModerationRequest::new([""]),
        ModerationRequest::new(["a", ""]),
        ModerationRequest::new(["a"]).images([by_id()]),
    ] {
        let error = sent(request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    let groq = OpenAiLayer::profile(Profile::GROQ, "m", Some(ApiKey::new("k"))).moderation();
    assert!(!groq.is_supported() && layer().moderation().is_supported());

    // 1 MiB is sent; more is not, in one text or in several.
    let text = |bytes: usize| Str::from("x".repeat(bytes));
    let half = 1 << 19;
    assert!(sent(ModerationRequest::new([text(1 << 20)])).await.is_ok());
    assert!(
        sent(ModerationRequest::new([text(half), text(half)]))
            .await
            .is_ok()
    );
    for texts in [vec![text(4 << 20)], vec![text(half), text(half), text(1)]] {
        let error = sent(ModerationRequest::new(texts)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(!format!("{error:?}").contains("xx"));
    }
}

#[tokio::test]
async fn a_result_with_a_missing_part_is_an_error() {
    let whole = found(&["violence"]);
    let without = |name: &str| {
        let mut result = whole.clone();
        result.as_object_mut().unwrap().remove(name);
        result
    };
    let with = |name: &str, value: Value| {
        let mut result = whole.clone();
        result[name] = value;
        result
    };
    for results in [
        json!(null),
        json!({}),
        json!([]),
        json!([null]),
        json!([{}]),
        json!([whole, whole]),
        json!([without("categories")]),
        json!([without("category_scores")]),
        json!([with("category_scores", json!({}))]),
        json!([with("category_scores", json!({"violence": null}))]),
        json!([with("category_scores", json!({"violence": "0.7"}))]),
        json!([with("category_scores", json!([0.7]))]),
        json!([with("categories", json!({"violence": "yes"}))]),
        json!([with("categories", json!({"violence": 1}))]),
        json!([with("flagged", json!("true"))]),
        // Flagged, and nothing says for what.
        json!([with("categories", json!({"violence": false}))]),
    ] {
        let body = json!({"model": "m", "results": results}).to_string();
        let result = call(ModerationRequest::new(["a"]), response(200, &[], &body)).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol, "{body}");
    }
    for body in [
        "",
        "{",
        "<html>",
        "null",
        "[]",
        r#"{"results": [{"categories": NaN}]}"#,
    ] {
        let result = call(ModerationRequest::new(["a"]), response(200, &[], body)).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol, "{body}");
    }
}

#[tokio::test]
async fn categories_that_are_new_or_that_a_model_lacks_are_read() {
    let read = async |result: Value| {
        let response = call(ModerationRequest::new(["a"]), ok(&[result])).await;
        response.unwrap().output.remove(0)
    };
    let moderation = read(json!({
        "flagged": true,
        "categories": {"gossip": true, "illicit": null, "violence": false},
        "category_scores": {"gossip": 1, "illicit": null, "violence": 0.1, "apart": 1e-9},
        "a new field": [],
    }))
    .await;
    assert_eq!(moderation.flagged, ["gossip"]);
    let names: Vec<&str> = moderation.scores.keys().map(Str::as_str).collect();
    assert_eq!(names, ["apart", "gossip", "violence"]);

    // Mistral's results have no flag of the whole, and a flag of a category decides.
    let scores = json!({"pii": 0.9});
    let mistral = json!({"categories": {"pii": true}, "category_scores": scores});
    assert_eq!(read(mistral).await.flagged, ["pii"]);
    let odd = json!({"flagged": false, "categories": {"pii": true}, "category_scores": scores});
    assert_eq!(read(odd).await.flagged, ["pii"]);
}

#[tokio::test]
async fn a_threshold_replaces_the_flag_of_its_category() {
    let mut result = found(&["violence", "hate", "illicit"]);
    result["category_scores"]["illicit"] = Value::Null;
    let response = call(ModerationRequest::new(["a"]), ok(&[result]))
        .await
        .unwrap();
    let moderation = &response.output[0];
    let over = |limits: &[(&str, f64)]| {
        moderation.over(|name| {
            limits
                .iter()
                .find(|(it, _)| *it == name)
                .map(|(_, limit)| *limit)
        })
    };
    assert_eq!(over(&[]), ["hate", "illicit", "violence"]);
    // A score that equals its threshold is over it.
    assert_eq!(over(&[("violence", 0.7)]), ["violence", "hate", "illicit"]);
    assert_eq!(over(&[("violence", 0.71)]), ["hate", "illicit"]);
    assert_eq!(
        over(&[("sexual", 0.0001), ("hate", 1.0)]),
        ["sexual", "illicit", "violence"]
    );
    // Without a score, the flag counts. No score reaches a threshold that is no number.
    assert_eq!(
        over(&[("illicit", 1.0), ("hate", 1.0), ("violence", f64::NAN)]),
        ["illicit"]
    );
    assert_eq!(moderation.over(|_| Some(0.0)).len(), CATEGORIES.len());
}

#[tokio::test]
async fn errors_are_those_of_a_model() {
    let request = || ModerationRequest::new(["a"]);
    let of = |kind: &str, code: Value, message: &str| json!({"error": {"message": message, "type": kind, "param": "input", "code": code}});
    let invalid = "invalid_request_error";
    let too_many = "Number of images (2) exceeds maximum of 1";
    for (status, body, kind) in [
        (
            400,
            of(invalid, "too_many_images".into(), too_many),
            ErrorKind::InvalidRequest,
        ),
        (
            401,
            of(invalid, "invalid_api_key".into(), CANARY),
            ErrorKind::Authentication,
        ),
        // The name of the model is no sign of a content filter.
        (
            404,
            of(invalid, "model_not_found".into(), MODEL),
            ErrorKind::NotFound,
        ),
        (413, json!({}), ErrorKind::TooLarge),
        (
            429,
            of("requests", "rate_limit_exceeded".into(), "slow down"),
            ErrorKind::RateLimited,
        ),
        (500, json!({}), ErrorKind::Server),
        (503, json!("busy"), ErrorKind::Overloaded),
        // With the status of success.
        (
            200,
            of("server_error", Value::Null, "failed"),
            ErrorKind::Server,
        ),
    ] {
        let answer = response(status, &[("retry-after", "3")], &body.to_string());
        let error = call(request(), answer).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{body}");
        assert_eq!(error.provider(), Some("openai"));
        assert!(!format!("{error:?} {error:#}").contains(CANARY));
        let after = (status != 200).then_some(Duration::from_secs(3));
        assert_eq!(error.retry_after(), after, "{status}");
    }
    let broken = http::Response::new(Script::new(["{"], End::Broken));
    let error = call(request(), broken).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
}

#[tokio::test]
async fn a_response_of_the_maximum_size_is_read_and_a_larger_one_is_not() {
    let body = json!({"results": [found(&[])]}).to_string();
    for (limit, kind) in [
        (body.len(), None),
        (body.len() - 1, Some(ErrorKind::TooLarge)),
    ] {
        let mut limits = Limits::default();
        limits.response = limit;
        let layer = layer().limits(limits).moderation();
        let http = Http::new(response(200, &[], &body));
        let result = layer
            .layer(http)
            .oneshot(ModerationRequest::new(["a"]))
            .await;
        assert_eq!(result.err().map(|error| error.kind()), kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_service_times_out_and_a_dropped_call_drops_its_response() {
    let silent = || Script::new(["{"], End::Silent);
    let timeouts = Timeouts::off().idle(Duration::from_secs(2));
    let layer = layer().timeouts(timeouts).moderation();
    let service = layer.layer(Http::new(http::Response::new(silent())));
    let error = service
        .oneshot(ModerationRequest::new(["a"]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);

    let script = silent();
    let dropped = Arc::clone(&script.dropped);
    let service = layer.layer(Http::new(http::Response::new(script)));
    let mut call = task::spawn(service.oneshot(ModerationRequest::new(["a"])));
    assert_pending!(call.poll());
    assert!(!dropped.load(Ordering::SeqCst));
    drop(call);
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn the_key_is_not_shown() {
    let layer = layer().moderation();
    let http = Http::new(ok(&[found(&[])]));
    let asked = Arc::clone(&http.asked);
    let mut service = layer.layer(http);
    let call = service
        .ready()
        .await
        .unwrap()
        .call(ModerationRequest::new(["a text"]));
    let sent = asked.lock().unwrap().take();
    let shown = format!("{layer:?} {service:?} {call:?} {sent:?}");
    assert!(!shown.contains(CANARY), "{shown}");
    assert!(call.await.is_ok());
}
