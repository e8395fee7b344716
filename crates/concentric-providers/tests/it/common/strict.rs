//! A validator for requests, as strict as the strictest service of each API: a request that passes
//! is well-formed for all of them.
//!
//! The rules are from the services' API references, and from their error messages.

use serde_json::Value;
use std::collections::HashSet;

/// The faults of a request to `api`; empty if it is valid.
pub(crate) fn faults(api: &str, request: &Value) -> Vec<String> {
    let mut check = Check::default();
    match api {
        "chat" => check.chat(request),
        "responses" => check.responses(request),
        "anthropic" => check.anthropic(request),
        "gemini" => check.gemini(request),
        "ollama" => check.ollama(request),
        other => check.fault(format!("no rules for {other}")),
    }
    check.faults
}

#[derive(Default)]
struct Check {
    faults: Vec<String>,
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Whether all services accept `name` as the name of a tool.
fn is_name(name: &str, length: usize) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=length).contains(&name.len()) && name.chars().all(known)
}

/// Whether a service that may accept other names than `is_name` accepts `name` in a history: those of the offered tools
/// are kept.
fn is_known(request: &Value, name: &str, length: usize) -> bool {
    let offers = |tool: &Value| tool["name"] == name || tool["function"]["name"] == name;
    is_name(name, length) || list(request, "tools").iter().any(offers)
}

fn is_object_text(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    serde_json::from_str::<Value>(text).is_ok_and(|json| json.is_object())
}

impl Check {
    fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(what.into());
    }

    fn must(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.fault(what);
        }
    }

    // ---- chat completions ----

    fn chat(&mut self, request: &Value) {
        let messages = list(request, "messages");
        self.must(!messages.is_empty(), "no messages");
        let mut open: Vec<&str> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let role = text(message, "role");
            if role == "tool" {
                let id = text(message, "tool_call_id");
                match open.iter().position(|open| *open == id) {
                    Some(at) => {
                        open.remove(at);
                    }
                    None => self.fault(format!("{at}: a result of no call: `{id}`")),
                }
                self.must(
                    message["content"].is_string(),
                    format!("{at}: a result without text"),
                );
                continue;
            }
            self.must(
                open.is_empty(),
                format!("{at}: calls without results: {open:?}"),
            );
            open.clear();
            match role {
                "system" | "developer" => {
                    self.must(
                        !text(message, "content").is_empty(),
                        format!("{at}: no content"),
                    );
                }
                "user" => self.chat_user(at, &message["content"]),
                "assistant" => {
                    let calls = list(message, "tool_calls");
                    let says = ["content", "refusal"].map(|field| !text(message, field).is_empty());
                    let says = says.contains(&true);
                    self.must(says || !calls.is_empty(), format!("{at}: no content"));
                    for call in calls {
                        let id = text(call, "id");
                        self.must(!id.is_empty(), format!("{at}: a call without an id"));
                        self.must(!open.contains(&id), format!("{at}: two calls `{id}`"));
                        let name = text(&call["function"], "name");
                        self.must(
                            is_known(request, name, 64),
                            format!("{at}: the name `{name}`"),
                        );
                        let arguments = &call["function"]["arguments"];
                        self.must(is_object_text(arguments), format!("{at}: odd arguments"));
                        open.push(id);
                    }
                }
                other => self.fault(format!("{at}: the role `{other}`")),
            }
        }
        self.must(open.is_empty(), format!("calls without results: {open:?}"));
    }

    fn chat_user(&mut self, at: usize, content: &Value) {
        match content {
            Value::String(text) => self.must(!text.is_empty(), format!("{at}: no content")),
            Value::Array(parts) => {
                self.must(!parts.is_empty(), format!("{at}: no content"));
                for part in parts {
                    let kind = text(part, "type");
                    let known = ["text", "image_url", "input_audio", "file", "audio_url"];
                    self.must(known.contains(&kind), format!("{at}: a part `{kind}`"));
                    self.must(
                        kind != "text" || !text(part, "text").is_empty(),
                        format!("{at}: an empty text"),
                    );
                }
            }
            _ => self.fault(format!("{at}: no content")),
        }
    }

    // ---- OpenAI Responses ----

    fn responses(&mut self, request: &Value) {
        let input = list(request, "input");
        self.must(!input.is_empty(), "no input");
        let mut open: Vec<&str> = Vec::new();
        let mut ids = HashSet::new();
        for (at, item) in input.iter().enumerate() {
            if let Some(id) = item["id"].as_str() {
                self.must(ids.insert(id), format!("{at}: two items `{id}`"));
            }
            let kind = item["type"].as_str().unwrap_or("message");
            let is_output = kind.ends_with("_output");
            // The items of one answer come in any order, and clients send them back in it.
            let is_of_answer = match kind {
                "function_call" | "custom_tool_call" | "reasoning" => true,
                "message" => item["role"] == "assistant",
                _ => false,
            };
            if !is_output && !is_of_answer {
                self.must(
                    open.is_empty(),
                    format!("{at}: calls without outputs: {open:?}"),
                );
            }
            match kind {
                "message" => self.responses_message(at, item),
                "reasoning" => {
                    let next = input.get(at + 1);
                    let follows = next.is_some_and(|next| {
                        next["type"] != "function_call_output"
                            && (next["role"].is_null() || next["role"] == "assistant")
                    });
                    self.must(follows, format!("{at}: reasoning that nothing follows"));
                    self.must(
                        item["summary"].is_array(),
                        format!("{at}: reasoning without a summary"),
                    );
                }
                "function_call" | "custom_tool_call" => {
                    let id = text(item, "call_id");
                    self.must((1..=64).contains(&id.len()), format!("{at}: the id `{id}`"));
                    self.must(!open.contains(&id), format!("{at}: two calls `{id}`"));
                    let name = text(item, "name");
                    self.must(
                        is_known(request, name, 128),
                        format!("{at}: the name `{name}`"),
                    );
                    if kind == "function_call" {
                        self.must(
                            is_object_text(&item["arguments"]),
                            format!("{at}: odd arguments"),
                        );
                    }
                    open.push(id);
                }
                "function_call_output" | "custom_tool_call_output" => {
                    let id = text(item, "call_id");
                    match open.iter().position(|open| *open == id) {
                        Some(at) => {
                            open.remove(at);
                        }
                        None => self.fault(format!("{at}: an output of no call: `{id}`")),
                    }
                    let output = &item["output"];
                    self.must(
                        output.is_string() || output.is_array(),
                        format!("{at}: an output without one"),
                    );
                }
                _ => {}
            }
        }
        self.must(open.is_empty(), format!("calls without outputs: {open:?}"));
    }

    fn responses_message(&mut self, at: usize, item: &Value) {
        let role = text(item, "role");
        let known: &[&str] = match role {
            "assistant" => &["output_text", "refusal"],
            "user" | "system" | "developer" => &["input_text", "input_image", "input_file"],
            other => return self.fault(format!("{at}: the role `{other}`")),
        };
        match &item["content"] {
            Value::String(text) => self.must(!text.is_empty(), format!("{at}: no content")),
            Value::Array(parts) => {
                self.must(!parts.is_empty(), format!("{at}: no content"));
                for part in parts {
                    let kind = text(part, "type");
                    self.must(known.contains(&kind), format!("{at}: {role} with `{kind}`"));
                }
            }
            _ => self.fault(format!("{at}: no content")),
        }
    }

    // ---- Anthropic Messages ----

    fn anthropic(&mut self, request: &Value) {
        let messages = list(request, "messages");
        self.must(!messages.is_empty(), "no messages");
        self.must(request["max_tokens"].as_u64() > Some(0), "no `max_tokens`");
        let breakpoints = request.to_string().matches("cache_control").count();
        self.must(breakpoints <= 4, format!("{breakpoints} cache breakpoints"));
        for segment in list(request, "system") {
            self.must(!text(segment, "text").is_empty(), "an empty system segment");
        }
        let mut open: Vec<&str> = Vec::new();
        let mut executed: Vec<&str> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let role = text(message, "role");
            let expected = ["user", "assistant"][at % 2];
            self.must(
                role == expected,
                format!("{at}: `{role}` where `{expected}` speaks"),
            );
            let content = &message["content"];
            let blocks = match content {
                Value::Array(blocks) => blocks.as_slice(),
                Value::String(_) => std::slice::from_ref(content),
                _ => &[],
            };
            self.must(!blocks.is_empty(), format!("{at}: no content"));
            let is_last = at + 1 == messages.len();
            let mut results = Vec::new();
            let mut calls = Vec::new();
            for (block_at, block) in blocks.iter().enumerate() {
                let kind = match block {
                    Value::String(_) => "text",
                    block => text(block, "type"),
                };
                match kind {
                    "text" => {
                        let said = block.as_str().unwrap_or_else(|| text(block, "text"));
                        self.must(!said.trim().is_empty(), format!("{at}: an empty text"));
                        let ends = is_last && role == "assistant" && block_at + 1 == blocks.len();
                        self.must(
                            !ends || said == said.trim_end(),
                            format!("{at}: white space at the end of a prefill"),
                        );
                    }
                    "tool_use" => {
                        let id = text(block, "id");
                        let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                        self.must(
                            !id.is_empty() && id.chars().all(ok),
                            format!("{at}: the id `{id}`"),
                        );
                        self.must(!calls.contains(&id), format!("{at}: two calls `{id}`"));
                        let name = text(block, "name");
                        self.must(is_name(name, 128), format!("{at}: the name `{name}`"));
                        self.must(block["input"].is_object(), format!("{at}: odd input"));
                        calls.push(id);
                    }
                    "tool_result" => {
                        self.must(role == "user", format!("{at}: a model's tool result"));
                        self.must(
                            results.len() == block_at,
                            format!("{at}: a result behind something else"),
                        );
                        results.push(text(block, "tool_use_id"));
                    }
                    "thinking" => {
                        self.must(
                            block["signature"].is_string(),
                            format!("{at}: no signature"),
                        );
                        self.must(role == "assistant", format!("{at}: a user who thinks"));
                        self.must(
                            block_at + 1 < blocks.len() || !is_last,
                            format!("{at}: ends with thinking"),
                        );
                    }
                    "server_tool_use" => executed.push(text(block, "id")),
                    _ if block["tool_use_id"].is_string() => {
                        let id = text(block, "tool_use_id");
                        self.must(
                            executed.contains(&id),
                            format!("{at}: a result of no call: `{id}`"),
                        );
                    }
                    _ => {}
                }
            }
            if role == "user" {
                for id in &open {
                    let times = results.iter().filter(|result| *result == id).count();
                    self.must(times == 1, format!("{at}: {times} results of `{id}`"));
                }
                for id in &results {
                    self.must(
                        open.contains(id),
                        format!("{at}: a result of no call: `{id}`"),
                    );
                }
                open.clear();
            } else {
                open = calls;
            }
        }
        self.must(open.is_empty(), format!("calls without results: {open:?}"));
    }

    // ---- Gemini ----

    fn gemini(&mut self, request: &Value) {
        let contents = list(request, "contents");
        self.must(!contents.is_empty(), "no contents");
        let mut open: Vec<&str> = Vec::new();
        let mut before = "";
        for (at, content) in contents.iter().enumerate() {
            let role = text(content, "role");
            self.must(
                matches!(role, "user" | "model"),
                format!("{at}: the role `{role}`"),
            );
            self.must(role != before, format!("{at}: `{role}` twice in a row"));
            before = role;
            let parts = list(content, "parts");
            self.must(!parts.is_empty(), format!("{at}: no content"));
            let (mut calls, mut results) = (Vec::new(), Vec::new());
            let mut running = 0_usize;
            for part in parts {
                let fields = [
                    "text",
                    "inlineData",
                    "fileData",
                    "functionCall",
                    "functionResponse",
                    "executableCode",
                    "codeExecutionResult",
                ];
                let data = fields
                    .iter()
                    .filter(|field| !part[**field].is_null())
                    .count();
                let signed = part["thoughtSignature"].is_string();
                self.must(data == 1, format!("{at}: a part of {data} kinds: {part}"));
                if let Some(said) = part["text"].as_str() {
                    self.must(!said.is_empty() || signed, format!("{at}: an empty text"));
                }
                running += usize::from(part["executableCode"].is_object());
                if part["codeExecutionResult"].is_object() {
                    self.must(running > 0, format!("{at}: a result of no code"));
                    running = running.saturating_sub(1);
                }
                if part["functionCall"].is_object() {
                    self.must(role == "model", format!("{at}: a user who calls"));
                    self.must(
                        part["functionCall"]["args"].is_object()
                            || part["functionCall"]["args"].is_null(),
                        format!("{at}: odd arguments"),
                    );
                    calls.push(text(&part["functionCall"], "name"));
                }
                if part["functionResponse"].is_object() {
                    self.must(
                        role == "user",
                        format!("{at}: a model that answers its calls"),
                    );
                    self.must(
                        part["functionResponse"]["response"].is_object(),
                        format!("{at}: a response that is no object"),
                    );
                    results.push(text(&part["functionResponse"], "name"));
                }
            }
            if role == "user" {
                self.must(open == results, format!("{at}: {results:?} to {open:?}"));
                open.clear();
            } else {
                open = calls;
            }
        }
        self.must(
            open.is_empty(),
            format!("calls without responses: {open:?}"),
        );
        // The vendor's SDKs start with a text by the model, but never with a call.
        let first = contents
            .first()
            .map_or(&[][..], |first| list(first, "parts"));
        let calls = first.iter().any(|part| part["functionCall"].is_object());
        self.must(!calls, "it begins with a call");
    }

    // ---- Ollama ----

    fn ollama(&mut self, request: &Value) {
        let messages = list(request, "messages");
        self.must(!messages.is_empty(), "no messages");
        let mut open = 0_usize;
        for (at, message) in messages.iter().enumerate() {
            let role = text(message, "role");
            self.must(
                message["content"].is_string() || !list(message, "tool_calls").is_empty(),
                format!("{at}: no content"),
            );
            for image in list(message, "images") {
                let data = image.as_str().unwrap_or("data:");
                self.must(
                    !data.starts_with("data:"),
                    format!("{at}: an image that is a URL"),
                );
            }
            match role {
                "tool" => {
                    self.must(open > 0, format!("{at}: a result of no call"));
                    open = open.saturating_sub(1);
                }
                "system" | "user" | "assistant" => {
                    let says = [
                        &message["content"],
                        &message["images"],
                        &message["tool_calls"],
                    ]
                    .into_iter()
                    .any(|said| match said {
                        Value::String(text) => !text.is_empty(),
                        Value::Array(list) => !list.is_empty(),
                        _ => false,
                    });
                    self.must(says, format!("{at}: no content"));
                    self.must(open == 0, format!("{at}: {open} calls without results"));
                    open = list(message, "tool_calls").len();
                    for call in list(message, "tool_calls") {
                        let name = text(&call["function"], "name");
                        self.must(
                            is_known(request, name, 64),
                            format!("{at}: the name `{name}`"),
                        );
                        self.must(
                            call["function"]["arguments"].is_object(),
                            format!("{at}: odd arguments"),
                        );
                    }
                }
                other => self.fault(format!("{at}: the role `{other}`")),
            }
        }
        self.must(open == 0, format!("{open} calls without results"));
    }
}
