use super::{DEVIATIONS, Observed, Recording};
use concentric_core::{Event, Executor};
use serde_json::{Value, json};
use std::borrow::Cow;

/// Holds what was observed against what is expected of `recording`.
///
/// Returns a line for each difference, and notes in `deviations` the names of those that are on
/// purpose. `None` if nothing can be expected: there is no oracle, or it is not to be trusted.
pub fn compare(
    recording: &Recording,
    observed: &Observed,
    deviations: &mut Vec<&'static str>,
) -> Option<Vec<String>> {
    let expected = recording.expected.as_ref()?;
    let trust = expected
        .get("trust")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let no_end = trust.starts_with("partial") && trust.contains("no terminal event");
    if trust != "full" && !no_end {
        return None;
    }
    let mut check = Check {
        recording,
        expected,
        differences: Vec::new(),
        deviations,
    };
    if let Some(broken) = observed.broken {
        check.differences.push(broken.to_owned());
    }
    let theirs = expected
        .get("outcome")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let ours = observed.outcome(recording.status, recording.stream);
    let wanted = if no_end && theirs == "ok" {
        "truncated"
    } else {
        theirs
    };
    check.same("outcome", &json!(wanted), &json!(ours));
    match ours {
        "ok" if wanted == "ok" => check.answer(observed),
        "error" => check.error(expected.get("error"), observed),
        _ => {
            if let Some(error) = expected.get("stream_error") {
                check.error(Some(error), observed);
            }
            check.said(observed);
            if observed
                .events
                .iter()
                .any(|e| matches!(e, Event::ToolCall(e) if e.call.executor != Executor::Provider))
            {
                check
                    .differences
                    .push("a tool call of an answer that failed".to_owned());
            }
        }
    }
    Some(check.differences)
}

struct Check<'a> {
    recording: &'a Recording,
    expected: &'a Value,
    differences: Vec<String>,
    deviations: &'a mut Vec<&'static str>,
}

impl Check<'_> {
    fn same(&mut self, field: &str, expected: &Value, observed: &Value) {
        if expected == observed {
            return;
        }
        let on_purpose = DEVIATIONS
            .iter()
            .find(|deviation| deviation.applies(self.recording, self.expected, field));
        match on_purpose {
            Some(deviation) => self.deviations.push(deviation.name),
            None => self
                .differences
                .push(format!("{field}: expected {expected}, observed {observed}")),
        }
    }

    fn text(&mut self, field: &str, observed: &str) {
        // Absent, `null` and empty are the same to a reader.
        let expected = self
            .expected
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default();
        self.same(field, &json!(expected), &json!(observed));
    }

    /// What was said, whole or not.
    fn said(&mut self, observed: &Observed) {
        self.text("text", &observed.text());
        self.text("reasoning", &observed.reasoning());
        self.text("refusal", &observed.refusal());
    }

    fn answer(&mut self, observed: &Observed) {
        let expected = self.expected;
        self.said(observed);
        match self.recording.api.as_str() {
            "gemini-generate" => self.gemini(observed),
            _ => self.same(
                "tool_calls",
                &json!(calls(expected)),
                &json!(observed.tool_calls()),
            ),
        }
        let reason = expected.get("finish_reason").unwrap_or(&Value::Null);
        self.same("finish_reason", reason, &observed.finish_reason());
        self.usage(&observed.usage());
        let head = observed.head.clone().unwrap_or_default();
        self.text("model", head.model.as_deref().unwrap_or_default());
        self.text("response_id", head.id.as_deref().unwrap_or_default());
    }

    fn usage(&mut self, observed: &Value) {
        let Some(Value::Object(expected)) = self.expected.get("usage") else {
            return self.same("usage", &Value::Null, observed);
        };
        let is_gemini = self.recording.api == "gemini-generate";
        for (name, count) in expected.iter().filter(|(name, _)| *name != "raw") {
            let mut count = Cow::Borrowed(count);
            match name.as_str() {
                // Its output does not count what was thought; ours does.
                "output" if is_gemini => {
                    let counts = [expected.get("output"), expected.get("reasoning")];
                    let counts = counts.into_iter().flatten().filter_map(Value::as_u64);
                    let sum = counts.reduce(|a, b| a + b);
                    count = Cow::Owned(json!(sum));
                }
                // In the total alone.
                "tool_use_prompt" => continue,
                _ => {}
            }
            let ours = observed.get(name).unwrap_or(&Value::Null);
            self.same(&format!("usage.{name}"), &count, ours);
        }
    }

    /// What is said of an answer of Gemini's only.
    fn gemini(&mut self, observed: &Observed) {
        let list = self.expected.get("tool_calls").and_then(Value::as_array);
        let mut theirs: Vec<Value> = Vec::new();
        for call in list.into_iter().flatten() {
            // A piece of a call: the oracle does not put them together.
            if call.get("name").is_none_or(Value::is_null) {
                continue;
            }
            let is_partial = call.get("partial") == Some(&json!(true));
            let arguments = call
                .get("arguments")
                .filter(|arguments| !arguments.is_null());
            theirs.push(json!({
                "id": call.get("id"),
                "name": call.get("name"),
                "arguments": match is_partial {
                    true => Value::Null,
                    false => arguments.cloned().unwrap_or_else(|| json!({})),
                },
            }));
        }
        let mut ours = observed.tool_calls();
        for (at, call) in ours.iter_mut().enumerate() {
            let text = call.get("arguments").and_then(Value::as_str);
            let parsed: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
            let is_partial = theirs
                .get(at)
                .is_some_and(|theirs| theirs.get("arguments") == Some(&Value::Null));
            if let (Some(arguments), Some(field)) = (parsed, call.get_mut("arguments")) {
                *field = if is_partial { Value::Null } else { arguments };
            }
        }
        self.same("tool_calls", &json!(theirs), &json!(ours));
        if let Some(count) = self.expected.get("thought_signatures") {
            self.same("thought_signatures", count, &json!(observed.signatures()));
        }
        let parts = self.expected.get("parts").and_then(Value::as_array);
        let is_medium = |part: &&Value| {
            ["inline_data", "file_data"]
                .iter()
                .any(|kind| **part == *kind)
        };
        if let Some(parts) = parts {
            let count = parts.iter().filter(is_medium).count();
            self.same("media", &json!(count), &json!(observed.media()));
        }
    }

    fn error(&mut self, expected: Option<&Value>, observed: &Observed) {
        let Some((expected, error)) = expected.zip(observed.error.as_ref()) else {
            return;
        };
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        if let Some(class) = expected.get("class").and_then(Value::as_str) {
            let kinds = kinds(class);
            if !kinds.is_empty() && !kinds.contains(&error.kind().as_str()) {
                self.same("error.class", &json!(class), &json!(error.kind()));
            }
        }
        if let Some(status) = expected
            .get("status_code")
            .filter(|status| status.is_number())
        {
            self.same("error.status", status, &json!(error.status()));
        }
        if let Some(code) = expected.get("code").and_then(text) {
            self.same("error.code", &json!(code), &json!(error.code()));
        }
        // Google's SDK calls the type a status.
        let type_ = expected.get("type").or_else(|| expected.get("status"));
        if let Some(type_) = type_.and_then(text) {
            self.same("error.type", &json!(type_), &json!(error.error_type()));
        }
        // The SDKs put their own words around what the service said.
        let class = expected.get("class").and_then(Value::as_str);
        let is_google = class.is_some_and(|class| class.starts_with("google."));
        let body = expected.get("body");
        let nested = |body: &Value| {
            body.get("error")
                .and_then(|error| error.get("message"))
                .cloned()
        };
        let said = body
            .and_then(|body| body.get("message").cloned().or_else(|| nested(body)))
            // Google's adds none.
            .or_else(|| expected.get("message").filter(|_| is_google).cloned())
            .as_ref()
            .and_then(text);
        if let Some(said) = said {
            let one_line: Vec<&str> = said.split_whitespace().collect();
            let ours = error.message().trim_end_matches('…');
            if !one_line.join(" ").starts_with(ours) || ours.is_empty() {
                self.same("error.message", &json!(said), &json!(error.message()));
            }
        }
    }
}

/// The kinds that an SDK's class of error stands for; none if it stands for all.
fn kinds(class: &str) -> &'static [&'static str] {
    match class.rsplit('.').next().unwrap_or_default() {
        "AuthenticationError" => &["authentication"],
        "PermissionDeniedError" => &["permission", "content_filter"],
        "NotFoundError" => &["not_found"],
        "RateLimitError" => &["rate_limited", "quota"],
        "BadRequestError" | "UnprocessableEntityError" | "ConflictError" => &[
            "invalid_request",
            "context_window",
            "content_filter",
            "authentication",
        ],
        "InternalServerError" => &["server", "overloaded", "timeout"],
        _ => &[],
    }
}

/// The tool calls that are expected.
fn calls(expected: &Value) -> Vec<Value> {
    let list = expected.get("tool_calls").and_then(Value::as_array);
    let mut calls: Vec<Value> = list
        .into_iter()
        .flatten()
        .map(|call| {
            json!({
                "id": call.get("id"),
                "name": call.get("name"),
                "arguments": call.get("arguments_raw").and_then(Value::as_str).unwrap_or_default(),
            })
        })
        .collect();
    // One call, as it was made before there were several.
    if let Some(call) = expected.get("legacy_function_call")
        && let Some(name) = call.get("name").and_then(Value::as_str)
        && !name.is_empty()
    {
        calls.push(json!({
            "id": null,
            "name": name,
            "arguments": call.get("arguments").and_then(Value::as_str).unwrap_or_default(),
        }));
    }
    calls
}
