use super::*;
use concentric_core::{ErrorKind, RateLimits, SideEffects, ToolNameTaken};
use std::time::{Duration, SystemTime};

/// A server whose model fails at once.
fn failing(error: Error) -> OpenAi {
    let model = service_fn(move |_: ChatRequest| {
        let error = error.clone();
        async { Err::<ChatResponse<crate::support::Script>, _>(error) }
    });
    OpenAi::new().model("m", model)
}

/// A request of each kind.
fn requests() -> [http::Request<Full<Bytes>>; 4] {
    [
        chat(json!({})),
        chat(json!({"stream": true})),
        response(json!({})),
        response(json!({"stream": true})),
    ]
}

#[tokio::test]
async fn each_kind_of_error_has_its_status() {
    use ErrorKind as K;

    for (kind, status, code) in [
        (K::Authentication, 502, "upstream_authentication"),
        (K::Permission, 502, "upstream_permission"),
        (K::NotFound, 502, "upstream_not_found"),
        (K::Quota, 502, "upstream_quota"),
        (K::Server, 502, "upstream_server"),
        (K::Connection, 502, "upstream_connection"),
        (K::Truncated, 502, "upstream_truncated"),
        (K::Protocol, 502, "upstream_protocol"),
        (K::InvalidRequest, 400, "invalid_request"),
        (K::ContextWindow, 400, "context_length_exceeded"),
        (K::ContentFilter, 400, "content_filter"),
        (K::RateLimited, 429, "rate_limit_exceeded"),
        (K::Overloaded, 503, "overloaded"),
        (K::Timeout, 504, "timeout"),
        (K::TooLarge, 413, "too_large"),
        (K::Tool, 500, "tool"),
        (K::Configuration, 500, "configuration"),
        (K::Cancelled, 499, "cancelled"),
        (K::Waiting, 409, "approval_required"),
        (K::Conflict, 409, "conflict"),
        (K::Halted, 500, "halted"),
        (K::Other, 500, "other"),
    ] {
        let error = Error::new(kind, "sk-secret").with_retry_after(Duration::from_millis(1500));
        let is_retryable = error.is_retryable();
        let at_once = failing(error.clone());
        let in_body = api(vec![Err(error.clone())]);
        // A failure after output that no client has read.
        let later = api(vec![Ok(Event::text("a")), Err(error)]);
        for api in [at_once, in_body, later] {
            for request in requests() {
                let reply = send(&api, request).await;
                assert_eq!(reply.status, status, "{kind}: {}", reply.body);
                assert_eq!(reply.error()["code"], code);
                assert!(!reply.body.contains("sk-secret"));
                assert_eq!(reply.headers["retry-after"], "2");
                assert_eq!(reply.headers["retry-after-ms"], "1500");
                assert_eq!(reply.headers.contains_key("x-should-retry"), !is_retryable);
            }
        }
    }
}

#[tokio::test]
async fn the_rate_limits_of_an_error_are_headers() {
    let mut limits = RateLimits::default();
    limits.requests.limit = Some(500);
    limits.requests.remaining = Some(0);
    limits.requests.reset = Some(SystemTime::UNIX_EPOCH);
    limits.tokens.remaining = Some(7);
    for (kind, status) in [(ErrorKind::RateLimited, 429), (ErrorKind::Server, 502)] {
        let api = failing(Error::new(kind, "no").with_rate_limits(limits));
        for request in requests() {
            let reply = send(&api, request).await;
            assert_eq!(reply.status, status);
            let names = reply.headers.iter();
            let names = names.filter(|(name, _)| name.as_str().starts_with("x-ratelimit-"));
            assert_eq!(names.count(), if status == 429 { 4 } else { 0 });
            if status == 429 {
                assert_eq!(reply.headers["x-ratelimit-limit-requests"], "500");
                assert_eq!(reply.headers["x-ratelimit-remaining-requests"], "0");
                assert_eq!(reply.headers["x-ratelimit-reset-requests"], "0ms");
                assert_eq!(reply.headers["x-ratelimit-remaining-tokens"], "7");
            }
        }
    }
}

#[tokio::test]
async fn errors_of_layers_are_passed_on() {
    let budget = concentric_layers::budget::OVER_BUDGET;
    let error = Error::halted("1 of 1 calls").with_code(budget);
    let reply = send(&failing(error), chat(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (429, &json!("insufficient_quota"))
    );
    assert_eq!(reply.headers["x-should-retry"], "false");

    let error = Error::new(ErrorKind::Server, "no").with_advice(false);
    let reply = send(&failing(error), chat(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.headers["x-should-retry"]),
        (502, &"false".parse().unwrap())
    );

    let taken = ToolNameTaken::new("pay");
    let error = Error::new(ErrorKind::InvalidRequest, "taken").with_source(taken);
    let error = send(&failing(error), chat(json!({}))).await.error();
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("tool_name_taken"), &json!("tools"))
    );

    let api = failing(Error::new(ErrorKind::Server, "no"))
        .error_message(|error| format!("It failed: {}", error.kind()));
    let error = send(&api, chat(json!({}))).await.error();
    assert_eq!(error["message"], "It failed: server");
    let api = api.error_message(|_| panic!("in the host's function"));
    assert_eq!(send(&api, chat(json!({}))).await.status, 502);
}

#[tokio::test]
async fn a_client_tool_with_the_name_of_an_agents_tool_is_rejected() {
    let (agent, _) = agent(vec![], ok([finish()]));
    let api = OpenAi::new().model("m", agent);
    let reply = send(&api, chat(json!({"tools": chat_tools(&["pay"])}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (400, &json!("tool_name_taken"))
    );
}

/// The statuses that clients repeat.
fn is_repeated(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..)
}

#[tokio::test]
async fn a_failure_after_an_effect_is_not_repeated() {
    let pay = || vec![vec![call("c0", "pay", "{}")]];
    let failures: Vec<Vec<Item>> = [
        ErrorKind::Server,
        ErrorKind::RateLimited,
        ErrorKind::Overloaded,
        ErrorKind::Timeout,
        ErrorKind::Conflict,
        ErrorKind::Authentication,
        ErrorKind::Other,
    ]
    .map(|kind| {
        vec![Err(
            Error::new(kind, "no").with_retry_after(Duration::from_secs(1))
        )]
    })
    .into();
    let truncated = vec![vec![], ok([Event::text("a")])];
    for last in failures.into_iter().chain(truncated) {
        let (agent, paid) = agent(pay(), last);
        let api = OpenAi::new().model("m", agent);
        for (n, request) in requests().into_iter().enumerate() {
            let reply = send(&api, request).await;
            assert_eq!(paid.load(Ordering::SeqCst), n + 1);
            assert!(!is_repeated(reply.status), "{}", reply.status);
            assert_eq!(reply.headers["x-should-retry"], "false");
            assert!(!reply.headers.contains_key("retry-after"));
            assert!(
                reply.error()["message"]
                    .as_str()
                    .unwrap()
                    .contains("taken effect")
            );
        }
    }
    // An effect that only the error reports.
    for effects in [SideEffects::Possible, SideEffects::Committed] {
        let error = Error::new(ErrorKind::Timeout, "no").with_effects(effects);
        let reply = send(&failing(error), chat(json!({}))).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (424, &json!("timeout"))
        );
    }
}

#[tokio::test]
async fn a_panic_after_an_effect_is_not_repeated() {
    for in_future in [true, false] {
        for is_effect in [true, false] {
            let model = service_fn(move |request: ChatRequest| async move {
                let context = request.context;
                if is_effect {
                    context.count_effect();
                }
                assert!(!in_future, "sk-secret");
                let body =
                    stream::poll_fn(|_| -> std::task::Poll<Option<Item>> { panic!("sk-secret") });
                Ok::<_, Error>(ChatResponse::new(body))
            });
            let api = OpenAi::new().model("m", model);
            for request in requests() {
                let reply = send(&api, request).await;
                assert_eq!(reply.status, if is_effect { 424 } else { 500 });
                assert_eq!(reply.headers["x-should-retry"], "false");
                assert!(!reply.body.contains("sk-secret"));
                assert_eq!(reply.error()["code"], "internal");
            }
        }
    }
}

#[tokio::test]
async fn a_panic_of_the_stack_itself_is_an_error() {
    #[derive(Clone)]
    struct Panics;

    impl tower::Service<ChatRequest> for Panics {
        type Response = ChatResponse<crate::support::Script>;
        type Error = Error;
        type Future = std::future::Pending<Result<Self::Response, Error>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Error>> {
            panic!("not ready")
        }

        fn call(&mut self, _: ChatRequest) -> Self::Future {
            std::future::pending()
        }
    }

    let api = OpenAi::new().model("m", Panics);
    for request in requests() {
        assert_eq!(send(&api, request).await.status, 500);
    }
}

#[tokio::test]
async fn after_the_head_an_error_ends_the_stream_and_the_body() {
    let failed = || Error::new(ErrorKind::Overloaded, "no");
    let script = || vec![Ok(Event::text("a")), Ok(Event::text("b")), Err(failed())];
    let reply = send(&slow_api(script()), chat(json!({"stream": true}))).await;
    assert!(reply.cut.is_some());
    let events = reply.events();
    assert_eq!(sum(&events).0, "ab");
    let error = &events.last().unwrap()["error"];
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("overloaded"), &json!("server_error"))
    );
    assert!(error["message"].is_string());
}

#[tokio::test]
async fn a_stream_that_is_cut_anywhere_never_looks_complete() {
    let script = ok([
        Event::text("a"),
        call_start(0, "c", "look"),
        call_delta(0, "{}"),
        call("c", "look", "{}"),
        Event::text("b"),
        finish(),
    ]);
    for len in 0..script.len() {
        let failed = Error::new(ErrorKind::Connection, "cut");
        for end in [None, Some(Err(failed))] {
            let script: Vec<Item> = script[..len].iter().cloned().chain(end).collect();
            for api in [api(script.clone()), slow_api(script)] {
                for request in [
                    chat(json!({"tools": chat_tools(&["look"]), "stream": true})),
                    response(json!({"tools": response_tools(&["look"]), "stream": true})),
                ] {
                    let reply = send(&api, request).await;
                    if reply.status == 200 {
                        assert!(reply.cut.is_some());
                        assert!(!reply.body.contains("[DONE]"));
                        assert!(!reply.body.contains("response.completed"));
                        reply.events();
                    } else {
                        assert_eq!(reply.status, 502);
                        reply.error();
                    }
                }
                let whole = send(&api, chat(json!({"tools": chat_tools(&["look"])}))).await;
                assert_eq!(whole.status, 502);
            }
        }
    }
}
