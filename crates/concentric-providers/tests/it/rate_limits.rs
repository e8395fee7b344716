//! The rate limits that a provider reports, with answers and with errors of each API.

use crate::common::*;
use concentric_core::{Allowance, BoxModel, Error, ErrorKind, RateLimits};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use concentric_test::TestEnvironment;
use std::time::{Duration, SystemTime};
use tower::{Layer, ServiceExt};

const HEADERS: &[(&str, &str)] = &[
    ("x-ratelimit-limit-requests", "500"),
    ("x-ratelimit-remaining-requests", "0"),
    ("x-ratelimit-reset-requests", "6m0s"),
    (
        "x-ratelimit-remaining-tokens",
        "X-RATELIMIT-REMAINING-TOKENS-XXX",
    ),
];

/// The name of an API, its model, an answer, and an error in a stream.
type Api = (&'static str, fn(Http) -> BoxModel, String, String);

fn apis() -> Vec<Api> {
    vec![
        (
            "openai",
            |http| BoxModel::new(OpenAiLayer::new("m", ApiKey::new("k")).layer(http)),
            delta(r#"{"content":"a"}"#) + &finish("stop"),
            "data: {\"error\":{\"message\":\"no\",\"code\":\"rate_limit_exceeded\"}}\n\n".to_owned(),
        ),
        (
            "responses",
            |http| BoxModel::new(OpenAiResponsesLayer::new("m", ApiKey::new("k")).layer(http)),
            r#"{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#.to_owned(),
            r#"{"error":{"message":"no","code":"rate_limit_exceeded"}}"#.to_owned(),
        ),
        (
            "anthropic",
            |http| BoxModel::new(AnthropicLayer::new("m", ApiKey::new("k")).layer(http)),
            r#"{"type":"message","content":[{"type":"text","text":"a"}]}"#.to_owned(),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"no\"}}\n\n".to_owned(),
        ),
        (
            "gemini",
            |http| BoxModel::new(GeminiLayer::new("m", ApiKey::new("k")).layer(http)),
            r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}"#.to_owned(),
            r#"{"error":{"message":"no","code":429}}"#.to_owned(),
        ),
        (
            "ollama",
            |http| BoxModel::new(OllamaLayer::new("m").layer(http)),
            r#"{"message":{"role":"assistant","content":"a"},"done":true,"done_reason":"stop"}"#.to_owned(),
            r#"{"error":"rate_limit"}"#.to_owned(),
        ),
    ]
}

fn check(limits: &RateLimits, now: SystemTime, api: &str) {
    let requests = limits.requests;
    assert_eq!(
        (requests.limit, requests.remaining),
        (Some(500), Some(0)),
        "{api}"
    );
    assert_eq!(
        requests.reset,
        Some(now + Duration::from_secs(360)),
        "{api}"
    );
    assert_eq!(limits.tokens, Allowance::default(), "{api}");
}

#[tokio::test]
async fn answers_and_errors_have_the_reported_limits() {
    let env = TestEnvironment::new();
    let now = env.context().now();
    let ask = async |model: fn(Http) -> BoxModel, status, headers: &_, body: &str| {
        let http = Http::new(response(status, headers, body));
        model(http).oneshot(env.request("hi")).await
    };
    for (api, model, answer, failure) in apis() {
        let limited = ask(model, 200, HEADERS, &answer).await.unwrap();
        check(limited.extensions.get().unwrap(), now, api);
        assert_eq!(limited.text().await.unwrap(), "a");
        let plain = ask(model, 200, &[], &answer).await.unwrap();
        assert!(plain.extensions.get::<RateLimits>().is_none());

        let refused = ask(model, 429, HEADERS, "{}").await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::RateLimited);
        check(refused.rate_limits().unwrap(), now, api);
        assert_eq!(
            ask(model, 429, &[], "{}")
                .await
                .err()
                .unwrap()
                .rate_limits(),
            None
        );

        // Before the first content of an accepted request.
        let failed = ask(model, 200, HEADERS, &failure).await.err().unwrap();
        check(failed.rate_limits().unwrap(), now, api);
    }
}

#[test]
fn an_error_keeps_its_limits_when_it_is_boxed() {
    let mut limits = RateLimits::default();
    limits.tokens.remaining = Some(7);
    let boxed: concentric_core::BoxError = Error::new(ErrorKind::RateLimited, "no")
        .with_rate_limits(limits)
        .into();
    assert_eq!(Error::of(&*boxed).rate_limits(), Some(&limits));
    assert_eq!(Error::from(boxed).rate_limits(), Some(&limits));
}
