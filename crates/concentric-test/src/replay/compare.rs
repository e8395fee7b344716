use super::{DEVIATIONS, Observed, Recording};
use serde_json::{Value, json};

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
            if observed.has_calls_to_execute() {
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
        let (theirs, mut ours) = (calls(expected), observed.tool_calls());
        for (theirs, ours) in theirs.iter().zip(&mut ours) {
            read_arguments(theirs, ours);
        }
        self.same("tool_calls", &json!(theirs), &json!(ours));
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
        for (name, count) in expected.iter().filter(|(name, _)| *name != "raw") {
            let ours = observed.get(name).unwrap_or(&Value::Null);
            let cached = match &*self.recording.api {
                // It counts its input without what it read from the cache, or wrote to it.
                "anthropic-messages" if name == "input" => cached(expected),
                _ => 0,
            };
            let count = count.as_u64().map_or(count.clone(), |n| json!(n + cached));
            self.same(&format!("usage.{name}"), &count, ours);
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
        if let Some(type_) = expected.get("type").and_then(text) {
            self.same("error.type", &json!(type_), &json!(error.error_type()));
        }
        // The SDKs put their own words around what the service said.
        let body = expected.get("body");
        let nested = |body: &Value| {
            body.get("error")
                .and_then(|error| error.get("message"))
                .cloned()
        };
        let said = body
            .and_then(|body| body.get("message").cloned().or_else(|| nested(body)))
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
            "quota",
        ],
        "InternalServerError" => &["server", "overloaded", "timeout"],
        _ => &[],
    }
}

/// The input that is expected to have been read from the cache, or written to it.
fn cached(usage: &serde_json::Map<String, Value>) -> u64 {
    let count = |name| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    count("cached_input") + count("cache_write")
}

/// Reads the arguments of `ours` where `theirs` were read, and not kept as the service wrote them.
fn read_arguments(theirs: &Value, ours: &mut Value) {
    let read = theirs.get("arguments").is_some_and(Value::is_object);
    if let Some(arguments) = ours.get_mut("arguments").filter(|_| read)
        && let Some(value) = arguments
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok())
    {
        *arguments = value;
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
                "arguments": match (call.get("arguments_raw"), call.get("arguments")) {
                    (Some(raw), _) => json!(raw.as_str().unwrap_or_default()),
                    (None, Some(read @ Value::Object(_))) => read.clone(),
                    (None, _) => json!(""),
                },
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
