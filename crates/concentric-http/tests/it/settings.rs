//! Numeric and duration settings at zero, one and their maximum. The settings of the policy and of
//! the admission layer are tested in their own files.

use crate::support::{Asked, Item, agent, finish, input, post, send, types};
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_http::{
    Shutdown,
    ag_ui::{AgUiLayer, AgUiState, StateError},
};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;
use std::{convert::Infallible, time::Duration};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test]
async fn a_body_limit_counts_bytes() {
    let body = input().to_string();
    for (limit, status) in [
        (0, 413),
        (1, 413),
        (body.len() - 1, 413),
        (body.len(), 200),
        (usize::MAX, 200),
    ] {
        let layer = AgUiLayer::new().body_limit(limit);
        let service = layer.layer(agent(vec![Ok(finish())]));
        assert_eq!(send(service, post(body.clone())).await.status, status);
    }
    // An empty body is within every limit, but is not valid input.
    let service = AgUiLayer::new().body_limit(0).layer(agent(vec![]));
    assert_eq!(send(service, post("")).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn an_upload_timeout_may_be_zero_or_unlimited() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (timeout, status) in [
        (Some(Duration::ZERO), Some(408)),
        (Some(Duration::from_nanos(1)), Some(408)),
        (Some(Duration::MAX), None),
        (None, None),
    ] {
        let layer = AgUiLayer::new().upload_timeout(timeout);
        let service = layer.layer(agent(vec![Ok(finish())]));
        // A body that is available at once is always in time.
        let whole = send(service.clone(), post(input().to_string())).await;
        assert_eq!(whole.status, 200, "{timeout:?}");
        let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let never = http::Request::post("/agent")
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        let answer = tokio::time::timeout(day, service.oneshot(never)).await;
        let answer = answer.ok().map(|answer| answer.unwrap().status().as_u16());
        assert_eq!(answer, status, "{timeout:?}");
    }
}

#[tokio::test]
async fn a_state_limit_counts_bytes_of_json() {
    for (limit, one, long) in [
        (0, false, false),
        (1, true, false),
        (usize::MAX, true, true),
    ] {
        let asked = Asked::default();
        let service = AgUiLayer::new().state_limit(limit).layer(asked.agent());
        send(service, post(input().to_string())).await.events();
        let context = asked.take().context;
        let state = context.extensions().get::<AgUiState>().unwrap();
        for (value, fits) in [(json!(1), one), (json!([1, 2, 3]), long)] {
            let got = state.update(|state| *state = value.clone());
            assert_eq!(got.is_ok(), fits, "{limit}: {value}");
            if let Err(error) = got {
                assert!(matches!(error, StateError::TooLarge { limit: l, .. } if l == limit));
            }
        }
        // An update without a change is within every limit.
        assert!(state.update(|_| ()).is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_zero_or_unlimited_keep_alive_sends_no_comment() {
    for (silence, comments) in [
        (Some(Duration::ZERO), false),
        (Some(Duration::from_nanos(1)), true),
        (Some(Duration::from_secs(1)), true),
        (Some(Duration::MAX), false),
        (None, false),
    ] {
        let slow = service_fn(async |_: ChatRequest| {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok::<_, Error>(ChatResponse::new(stream::iter(vec![Ok(finish()) as Item])))
        });
        let service = AgUiLayer::new().keep_alive(silence).layer(slow);
        let response = service.oneshot(post(input().to_string())).await.unwrap();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let data: Bytes = frame.unwrap().into_data().unwrap();
            text.extend_from_slice(&data);
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.contains(": keep-alive"), comments, "{silence:?}");
        assert_eq!(
            types(&crate::support::legal(&text)),
            ["RUN_STARTED", "RUN_FINISHED"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_may_be_zero_or_unlimited() {
    for (grace, ended) in [
        (Duration::ZERO, true),
        (Duration::from_nanos(1), true),
        (Duration::MAX, false),
    ] {
        let shutdown = Shutdown::new();
        let silent = service_fn(async |_: ChatRequest| {
            Ok::<_, Error>(ChatResponse::new(stream::pending::<Result<Event, Error>>()))
        });
        let layer = AgUiLayer::new().shutdown(shutdown.clone());
        let service = layer.layer(silent);
        let response = service.oneshot(post(input().to_string())).await.unwrap();
        shutdown.begin(grace);
        let read = response.into_body().collect();
        let read = tokio::time::timeout(Duration::from_secs(24 * 60 * 60), read).await;
        assert_eq!(read.is_ok(), ended, "{grace:?}");
        if !ended {
            // The timeout dropped the body.
            shutdown.drained().await;
        }
    }
}
