use crate::{DEVIATIONS, Observed, Recording, deviation::with_apart};
use concentric_core::Event;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Compares an observed response with the expectations of `recording`.
///
/// Returns one line per difference, and adds the names of expected deviations to `deviations`.
/// Returns `None` if the recording has no expectations, or they are not reliable.
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
    // The deltas are reliable, the terminal event is not.
    let by_deltas = trust.starts_with("use delta_text");
    if trust != "full" && !no_end && !by_deltas {
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
    let wanted = match theirs {
        "ok" if no_end && expected.pointer("/event_counts/error").is_some() => "stream-error",
        "ok" if no_end => "truncated",
        // The reference parser reads the report of a failure as a response.
        "ok" if has_failed(expected) && recording.stream => "stream-error",
        "ok" if has_failed(expected) => "error",
        // It reports a stream even if there was none.
        "stream-error" if !(200..300).contains(&recording.status) => "error",
        theirs => theirs,
    };
    check.same("outcome", &json!(wanted), &json!(ours));
    match ours {
        "ok" if wanted == "ok" => check.answer(observed),
        "error" => {
            let error = expected
                .get("error")
                .or_else(|| expected.get("stream_error"));
            check.error(error, observed);
            check.error(response_error(expected), observed);
        }
        _ => {
            check.error(expected.get("stream_error"), observed);
            check.error(response_error(expected), observed);
            check.content(observed);
            if observed.has_calls_to_execute() {
                check
                    .differences
                    .push("a tool call in a response that failed".to_owned());
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
        // Absent, `null` and empty text are equivalent.
        let expected = self
            .expected
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default();
        self.same(field, &json!(expected), &json!(observed));
    }

    /// Compares the text, the reasoning and the refusal, of partial responses too.
    fn content(&mut self, observed: &Observed) {
        if left_out(self.expected) {
            return self.text("delta_text", &observed.text());
        }
        self.text("text", &observed.text());
        self.text("reasoning", &observed.reasoning());
        self.text("refusal", &observed.refusal());
    }

    fn answer(&mut self, observed: &Observed) {
        let expected = self.expected;
        self.content(observed);
        let (mut theirs, mut ours) = (calls(expected), observed.tool_calls());
        if self.recording.api == "gemini-generate" {
            self.gemini(observed);
        } else if let Some(Value::Array(arguments)) = expected.get("delta_arguments")
            && left_out(expected)
        {
            let ours: Vec<&Value> = ours.iter().filter_map(|c| c.get("arguments")).collect();
            self.same("delta_arguments", &json!(arguments), &json!(ours));
        } else {
            if expected.get("output_items").is_some() {
                ours = of_functions(observed);
            }
            for (theirs, ours) in theirs.iter().zip(&mut ours) {
                read_arguments(theirs, ours);
            }
            let ids = (take_ids(&mut theirs), take_ids(&mut ours));
            self.same("tool_calls.id", &ids.0, &ids.1);
            self.same("tool_calls", &json!(theirs), &json!(ours));
        }
        let status = ["finish_reason", "incomplete_reason", "status"].iter();
        let mut status = status.filter_map(|field| expected.get(*field));
        let reason = status.find(|reason| !reason.is_null());
        let reason = reason.unwrap_or(&Value::Null);
        self.same("finish_reason", reason, &observed.finish_reason());
        // In other APIs, annotations are counted in another way.
        if let Some(count) = expected.get("annotations")
            && expected.get("output_items").is_some()
            && !left_out(expected)
        {
            self.same("annotations", count, &json!(annotations(observed)));
        }
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
        let is_anthropic = self.recording.api == "anthropic-messages";
        for (name, count) in expected.iter().filter(|(name, _)| *name != "raw") {
            let mut count = Cow::Borrowed(count);
            match name.as_str() {
                // Gemini's output count excludes reasoning; ours includes it.
                "output" if is_gemini => {
                    let counts = [expected.get("output"), expected.get("reasoning")];
                    let counts = counts.into_iter().flatten().filter_map(Value::as_u64);
                    let sum = counts.reduce(|a, b| a + b);
                    count = Cow::Owned(json!(sum));
                }
                // Anthropic's input count excludes cache reads and writes.
                "input" if is_anthropic => {
                    let input = count.as_u64().map(|count| count + cached(expected));
                    count = Cow::Owned(json!(input));
                }
                // Gemini counts these tokens in the total only.
                "tool_use_prompt" => continue,
                _ => {}
            }
            let ours = observed.get(name).unwrap_or(&Value::Null);
            // The deviation applies only if our count is exactly the sum.
            match with_apart(self.expected, name) {
                Some(sum) if sum == *ours => {
                    self.same(&format!("usage.{name}.apart"), &count, ours);
                }
                _ => self.same(&format!("usage.{name}"), &count, ours),
            }
        }
    }

    /// Compares the parts of a response that only Gemini has.
    fn gemini(&mut self, observed: &Observed) {
        let list = self.expected.get("tool_calls").and_then(Value::as_array);
        let mut theirs: Vec<Value> = Vec::new();
        for call in list.into_iter().flatten() {
            // A part of a call, which the reference parser does not assemble.
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
        let mut ours = observed.calls_to_execute();
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
        // Google's SDK reports the type as `status`.
        let type_ = expected.get("type").or_else(|| expected.get("status"));
        if let Some(type_) = type_.and_then(text) {
            self.same("error.type", &json!(type_), &json!(error.error_type()));
        }
        // The SDKs add their own text to the service's message.
        let class = expected.get("class").and_then(Value::as_str);
        let is_google = class.is_some_and(|class| class.starts_with("google."));
        let body = expected.get("body");
        let nested = |body: &Value| {
            body.get("error")
                .and_then(|error| error.get("message"))
                .cloned()
        };
        // The expectation itself is the service's report if it has no class.
        let own = expected.get("class").is_none().then_some(expected);
        let message = (body.or(own))
            .and_then(|body| body.get("message").cloned().or_else(|| nested(body)))
            // Google's SDK adds no text.
            .or_else(|| expected.get("message").filter(|_| is_google).cloned())
            .as_ref()
            .and_then(text);
        if let Some(message) = message {
            let one_line: Vec<&str> = message.split_whitespace().collect();
            let ours = error.message().trim_end_matches('…');
            if !one_line.join(" ").starts_with(ours) || ours.is_empty() {
                self.same("error.message", &json!(message), &json!(error.message()));
            }
        }
    }
}

/// Returns `true` if the terminal event omits the content, so that only the deltas can be compared.
fn left_out(expected: &Value) -> bool {
    let filled = |field: &str| match expected.get(field) {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        _ => false,
    };
    let trust = expected.get("trust").and_then(Value::as_str);
    let is_empty = expected.get("output_items").is_some() && !filled("output_items");
    trust.is_some_and(|trust| trust.starts_with("use delta_text"))
        || (is_empty && (filled("delta_text") || filled("delta_arguments")))
}

/// Returns `true` if the service reports that the response failed.
fn has_failed(expected: &Value) -> bool {
    let status = expected.get("status").and_then(Value::as_str);
    matches!(status, Some("failed" | "cancelled")) || response_error(expected).is_some()
}

/// Returns the error in a response.
fn response_error(expected: &Value) -> Option<&Value> {
    let error = expected.get("response_error");
    error.filter(|error| !error.is_null())
}

/// Returns the calls of functions and custom tools. The reference parser counts no other calls, no
/// matter where they are executed.
fn of_functions(observed: &Observed) -> Vec<Value> {
    let calls = observed.events.iter().filter_map(|event| match event {
        Event::ToolCall(event) => Some(event),
        _ => None,
    });
    let is_function = calls.map(|event| {
        let data = event.provider_data.as_deref();
        let type_ = data.and_then(|data| data.data.pointer("/item/type"));
        let type_ = type_.and_then(Value::as_str).unwrap_or("function_call");
        matches!(type_, "function_call" | "custom_tool_call")
    });
    let all = observed.tool_calls().into_iter().zip(is_function);
    all.filter_map(|(call, is_function)| is_function.then_some(call))
        .collect()
}

/// Returns the number of annotations of the text.
fn annotations(observed: &Observed) -> usize {
    let ends = observed.events.iter().filter_map(|event| match event {
        Event::PartEnd(end) => end.provider_data.as_deref(),
        _ => None,
    });
    let lists = ends.filter_map(|data| data.data.get("annotations")?.as_array());
    lists.map(Vec::len).sum()
}

/// Returns the error kinds that an SDK's error class may correspond to; empty if any kind may.
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

/// Removes the ids from `calls`.
fn take_ids(calls: &mut [Value]) -> Value {
    let fields = calls.iter_mut().filter_map(Value::as_object_mut);
    fields
        .map(|call| call.remove("id").unwrap_or_default())
        .collect()
}

/// Returns the expected number of input tokens that were read from the cache or written to it.
fn cached(usage: &serde_json::Map<String, Value>) -> u64 {
    let count = |name| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    count("cached_input") + count("cache_write")
}

/// Parses the arguments of `ours` if those of `theirs` were parsed.
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

/// Returns the expected tool calls.
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
                    // A server tool without input has no text in a stream, and `{}` in a unary
                    // response.
                    (Some(raw), Some(read)) if *raw == "" && call.get("server").is_some() => {
                        read.clone()
                    }
                    (Some(raw), _) => json!(raw.as_str().unwrap_or_default()),
                    (None, Some(read @ Value::Object(_))) => read.clone(),
                    (None, _) => json!(""),
                },
            })
        })
        .collect();
    // The single call of the API before it had parallel calls.
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
