//! What a consumer gets of a call, and what must hold of it.

use super::{
    faults::{Case, limits},
    server::{LIMIT, Server},
    wire::{Api, CALLS, CANARY, TEXT},
};
use concentric_core::{BoxModel, ChatRequest, Error, Event};
use concentric_providers::HttpClient;
use futures_util::StreamExt;
use std::error::Error as _;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

/// All that came of a call.
#[derive(Debug, Default)]
pub struct Outcome {
    pub events: Vec<Event>,
    pub error: Option<Error>,
}

impl Outcome {
    pub fn text(&self) -> String {
        let text = self.events.iter().filter_map(|event| match event {
            Event::TextDelta(text) => Some(text.as_str()),
            _ => None,
        });
        text.collect()
    }

    /// The calls that a loop would execute, with their arguments.
    pub fn calls(&self) -> Vec<(String, String)> {
        let calls = self.events.iter().filter_map(|event| match event {
            Event::ToolCall(event) => {
                let call = &event.call;
                Some((call.name.to_string(), call.arguments.as_str().to_owned()))
            }
            _ => None,
        });
        calls.collect()
    }
}

/// Reads the answer to `request` to its end: one terminal item, and nothing after it.
pub async fn read(mut model: BoxModel, request: ChatRequest) -> Outcome {
    let mut outcome = Outcome::default();
    let call = model.ready().await.unwrap().call(request);
    let mut body = match call.await {
        Ok(response) => response.body,
        Err(error) => {
            outcome.error = Some(error);
            return outcome;
        }
    };
    let mut is_over = false;
    while let Some(item) = body.next().await {
        assert!(!is_over, "{item:?} follows the end");
        match item {
            Ok(event) => {
                is_over = event.is_finish();
                outcome.events.push(event);
            }
            Err(error) => {
                is_over = true;
                outcome.error = Some(error);
            }
        }
    }
    assert!(is_over, "the body has no end: {outcome:?}");
    assert!(body.next().await.is_none());
    outcome
}

/// Makes a call whose connection is `case`, and checks what comes of it.
pub async fn check(
    api: Api,
    client: &HttpClient,
    server: &Server,
    number: u64,
    case: Case,
) -> Outcome {
    let script = server.script(number, case.acts);
    let model = api.model(client, server, number, limits(), case.timeouts);
    let outcome = timeout(LIMIT, read(model, script.request())).await;
    let outcome = outcome.expect("an end");
    // It is closed though the outcome is still there.
    script.closed().await;
    let asked = script.asked();
    assert_eq!(asked.len(), 1, "the requests that the service has read");
    assert!(asked[0].contains(CANARY), "{}", asked[0]);

    let Some(fails) = case.fails else {
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert_eq!(outcome.text(), TEXT.concat());
        let whole = CALLS.map(|(name, pieces)| (name.to_owned(), pieces.concat()));
        assert_eq!(outcome.calls(), whole);
        return outcome;
    };
    let error = outcome.error.as_ref().expect("an error");
    assert_eq!(error.kind(), fails.kind, "{error:#}");
    assert_eq!(error.code(), fails.code, "{error:#}");
    assert_eq!(error.status(), fails.status, "{error:#}");
    assert_eq!(error.retry_after(), fails.retry_after, "{error:#}");
    assert_eq!(error.provider(), Some(api.provider()), "{error:#}");
    // Nothing of what is cut is executed, and nothing said twice.
    assert_eq!(outcome.calls(), []);
    let said = outcome.text();
    let is_part = TEXT.concat().starts_with(&said) || said.ends_with("and so on ");
    assert!(is_part, "{said:.200}");
    let shown = format!(
        "{error:#} {error:?} {:?} {:?}",
        error.source(),
        error.error_type()
    );
    assert!(!shown.contains(CANARY), "{shown}");
    assert!(error.to_string().len() < 1200, "{error}");
    outcome
}
