use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Error, ErrorKind, Event, Executor, PartKind, ResponseHead,
    Str,
};
use concentric_test::TestEnvironment;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};
use std::pin::pin;
use tower::{Service, ServiceExt};

/// A model's response, event by event.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Observed {
    /// The response head, if there was a response.
    pub head: Option<ResponseHead>,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The error that ended the response, if any.
    pub error: Option<Error>,
    /// Whether the future returned the error, rather than the body.
    pub refused: bool,
    /// How the body broke its contract, if it did.
    pub broken: Option<&'static str>,
}

/// Calls `model`, and reads its response to the end.
pub async fn observe<S, B>(model: S, mut request: ChatRequest) -> Observed
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    // The ids are the same for each call, so that two responses can be compared.
    request.context = TestEnvironment::new().context();
    let mut observed = Observed::default();
    let response = match model.oneshot(request).await {
        Ok(response) => response,
        Err(error) => {
            observed.error = Some(Error::from(error.into()));
            observed.refused = true;
            return observed;
        }
    };
    observed.head = Some(response.head);
    let mut body = pin!(response.body);
    while let Some(item) = body.next().await {
        if observed.is_over() {
            observed.broken = Some("an item after the terminal item");
            return observed;
        }
        match item {
            Ok(event) => observed.events.push(event),
            Err(error) => observed.error = Some(error),
        }
    }
    if !observed.is_over() {
        observed.broken = Some("an end without a terminal item");
    } else if !observed.events.iter().any(Event::is_content) {
        observed.broken = Some("a response without content");
    }
    observed
}

impl Observed {
    fn is_over(&self) -> bool {
        self.error.is_some() || self.events.last().is_some_and(Event::is_finish)
    }

    /// Returns the outcome: `ok`, `truncated`, `error` (the request failed) or `stream-error` (the
    /// response failed after it had begun).
    pub fn outcome(&self, status: u16, stream: bool) -> &'static str {
        match &self.error {
            None => "ok",
            Some(error) if error.kind() == ErrorKind::Truncated => "truncated",
            Some(_) if stream && (200..300).contains(&status) => "stream-error",
            Some(_) => "error",
        }
    }

    fn joined(&self, text: impl Fn(&Event) -> Option<&Str>) -> String {
        self.events
            .iter()
            .filter_map(text)
            .map(Str::as_str)
            .collect()
    }

    /// Returns the text.
    pub fn text(&self) -> String {
        self.joined(|event| match event {
            Event::TextDelta(text) => Some(text),
            _ => None,
        })
    }

    /// Returns the reasoning.
    pub fn reasoning(&self) -> String {
        self.joined(|event| match event {
            Event::ReasoningDelta(text) => Some(text),
            _ => None,
        })
    }

    /// Returns the refusal.
    pub fn refusal(&self) -> String {
        self.joined(|event| match event {
            Event::RefusalDelta(text) => Some(text),
            _ => None,
        })
    }

    /// Returns the tool calls, with the service's ids.
    pub fn tool_calls(&self) -> Vec<Value> {
        self.calls(|_| true)
    }

    /// Returns the tool calls that the provider has not executed itself.
    pub fn calls_to_execute(&self) -> Vec<Value> {
        self.calls(|executor| executor != Executor::Provider)
    }

    fn calls(&self, counts: impl Fn(Executor) -> bool) -> Vec<Value> {
        let calls = self.events.iter().filter_map(|event| match event {
            Event::ToolCall(event) if counts(event.call.executor) => Some(&event.call),
            _ => None,
        });
        calls
            .map(|call| {
                json!({
                    "id": call.provider_id,
                    "name": call.name,
                    "arguments": call.arguments.as_str(),
                })
            })
            .collect()
    }

    /// Returns the number of parts that the service signed (`thoughtSignature`).
    pub fn signatures(&self) -> usize {
        let data = self.events.iter().filter_map(|event| match event {
            Event::PartEnd(end) => end.provider_data.as_deref(),
            Event::ToolCall(call) => call.provider_data.as_deref(),
            Event::Part(part) => match &part.kind {
                PartKind::Provider(data) => Some(data),
                _ => part.provider_data.as_deref(),
            },
            _ => None,
        });
        data.filter(|data| {
            ["/fields/thoughtSignature", "/part/thoughtSignature"]
                .iter()
                .any(|place| data.data.pointer(place).is_some())
        })
        .count()
    }

    /// Returns the number of image, audio and file parts.
    pub fn media(&self) -> usize {
        let is_medium = |event: &&Event| match event {
            Event::Part(part) => matches!(
                part.kind,
                PartKind::Image(_) | PartKind::Audio(_) | PartKind::File(_)
            ),
            _ => false,
        };
        self.events.iter().filter(is_medium).count()
    }

    /// Returns `true` if there is a tool call that the provider has not executed itself.
    pub fn has_calls_to_execute(&self) -> bool {
        self.events.iter().any(|event| match event {
            Event::ToolCall(event) => event.call.executor != Executor::Provider,
            _ => false,
        })
    }

    /// Returns the finish reason as the service sent it.
    pub fn finish_reason(&self) -> Value {
        match self.events.last() {
            Some(Event::Finish(finish)) => json!(finish.provider_reason),
            _ => Value::Null,
        }
    }

    /// Returns the usage as the service counted it.
    pub fn usage(&self) -> Value {
        let Some(Event::Finish(finish)) = self.events.last() else {
            return Value::Null;
        };
        let usage = finish.usage;
        if usage == Default::default() {
            return Value::Null;
        }
        json!({
            "input": usage.input_tokens(),
            "output": usage.output_tokens(),
            "total": usage.total_tokens(),
            "cached_input": usage.cached_input_tokens(),
            "cache_write": usage.cache_write_tokens(),
            "reasoning": usage.reasoning_tokens(),
        })
    }

    /// Returns all of it as JSON.
    pub fn to_json(&self, id: &str, status: u16, stream: bool) -> Value {
        let error = self.error.as_ref().map(|error| {
            json!({
                "kind": error.kind(),
                "status": error.status(),
                "code": error.code(),
                "type": error.error_type(),
                "message": error.message(),
            })
        });
        json!({
            "id": id,
            "outcome": self.outcome(status, stream),
            "text": self.text(),
            "reasoning": self.reasoning(),
            "refusal": self.refusal(),
            "tool_calls": self.tool_calls(),
            "finish_reason": self.finish_reason(),
            "usage": self.usage(),
            "model": self.head.as_ref().and_then(|head| head.model.as_ref()),
            "response_id": self.head.as_ref().and_then(|head| head.id.as_ref()),
            "error": error,
        })
    }
}
