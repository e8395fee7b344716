use crate::{Endpoint, Json, key};
use arbitrary::Arbitrary;
use serde_json::{Map, Value, json};

/// A request to an endpoint: what a client may write, with names that meet each other.
#[derive(Arbitrary, Clone, Debug)]
pub struct Input {
    messages: Vec<Message>,
    tools: Vec<(Name, Option<Schema>)>,
    state: Option<Json>,
    context: Vec<(u8, u8)>,
    props: Option<Json>,
    resume: Option<Vec<Entry>>,
    same_run: bool,
}

#[derive(Arbitrary, Clone, Debug)]
enum Message {
    System(Id, String),
    Developer(Id, String),
    User(Id, Content),
    Assistant(Id, Option<String>, Vec<Call>, Option<u8>),
    Tool(Id, Id, Content, Option<String>, Option<u8>),
    Reasoning(Id, String),
    Activity(Id, Json),
}

/// One of a few identifiers, as this endpoint writes them, too.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Id {
    name: u8,
    number: u8,
}

impl Id {
    fn text(self, prefix: &str) -> String {
        let name = self.name % 8;
        match self.number % 8 {
            0 => format!("{prefix}{name}~2"),
            1 => format!("{prefix}{name}~{}", self.number),
            2 => format!("m{name}/0/{prefix}{name}"),
            3 if name == 0 => String::new(),
            _ => format!("{prefix}{name}"),
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    Look,
    Pay,
    Client,
    Other(u8),
    Odd(u8),
}

impl Name {
    fn text(self) -> String {
        match self {
            Self::Look => "look".to_owned(),
            Self::Pay => "pay".to_owned(),
            Self::Client => "client".to_owned(),
            Self::Other(number) => format!("tool_{}", number % 8),
            Self::Odd(number) => key(number),
        }
    }
}

#[derive(Arbitrary, Clone, Debug)]
struct Call {
    id: Id,
    tool: Name,
    arguments: Arguments,
}

#[derive(Arbitrary, Clone, Debug)]
enum Arguments {
    Empty,
    Json(Json),
    Text(String),
}

#[derive(Arbitrary, Clone, Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Arbitrary, Clone, Debug)]
enum Part {
    Text(String),
    Data(u8, Vec<u8>),
    Url(u8, u8),
    File(u8, u8),
}

#[derive(Arbitrary, Clone, Debug)]
enum Schema {
    Any(Json),
    Object(Vec<(u8, Schema)>, Vec<u8>),
    Ref(u8),
    Defs(Vec<(u8, Schema)>, Box<Schema>),
    Enum(Vec<Json>),
    List(Box<Schema>),
    AnyOf(Vec<Schema>),
    Type(u8),
}

#[derive(Arbitrary, Clone, Debug)]
struct Entry {
    message: Id,
    position: u8,
    call: Id,
    cancelled: bool,
    payload: Payload,
}

#[derive(Arbitrary, Clone, Debug)]
enum Payload {
    None,
    Approve,
    Deny,
    Edit(Json),
    Result(Json),
    Token(String),
    Any(Json),
}

impl Input {
    /// The body of the request to an endpoint.
    pub fn body(&self, endpoint: Endpoint) -> Value {
        match endpoint {
            Endpoint::AgUi => self.ag_ui(),
            Endpoint::Chat => self.chat(),
            Endpoint::Responses => self.responses(),
            Endpoint::UiMessages => self.ui_messages(),
        }
    }

    fn ag_ui(&self) -> Value {
        let mut json = json!({
            "threadId": "t",
            "runId": if self.same_run { "r" } else { "r2" },
            "messages": self.messages.iter().map(Message::json).collect::<Value>(),
            "tools": self.tools.iter().map(tool).collect::<Value>(),
            "context": self.context.iter()
                .map(|(a, b)| json!({"description": key(*a), "value": key(*b)}))
                .collect::<Value>(),
        });
        if let Some(state) = &self.state {
            json["state"] = state.value();
        }
        if let Some(props) = &self.props {
            json["forwardedProps"] = props.value();
        }
        if let Some(resume) = &self.resume {
            json["resume"] = resume.iter().map(Entry::json).collect();
        }
        json
    }
}

impl Input {
    fn chat(&self) -> Value {
        let tool = |tool| json!({"type": "function", "function": self::tool(tool)});
        let mut json = json!({
            "model": "m",
            "stream": self.same_run,
            "messages": self.messages.iter().map(Message::chat).collect::<Value>(),
            "tools": self.tools.iter().map(tool).collect::<Value>(),
        });
        if let Some(state) = &self.state {
            json["response_format"] = json!({
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"properties": {"a": state.value()}}},
            });
        }
        self.options(&mut json);
        json
    }

    fn responses(&self) -> Value {
        let tool = |tool| {
            let mut tool = self::tool(tool);
            tool["type"] = json!("function");
            tool
        };
        let items = self.messages.iter().flat_map(Message::items);
        let mut json = json!({
            "model": "m",
            "stream": self.same_run,
            "input": items.collect::<Value>(),
            "tools": self.tools.iter().map(tool).collect::<Value>(),
        });
        if let Some(state) = &self.state {
            json["text"] = json!({"format": {
                "type": "json_schema", "name": "a", "schema": {"properties": {"a": state.value()}},
            }});
        }
        self.options(&mut json);
        json
    }

    /// Sets options by the facts about the application, and other fields.
    fn options(&self, json: &mut Value) {
        const OPTIONS: [&str; 16] = [
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "seed",
            "stop",
            "tool_choice",
            "parallel_tool_calls",
            "instructions",
            "reasoning_effort",
            "reasoning",
            "metadata",
            "n",
            "stream_options",
            "user",
        ];
        for (option, value) in &self.context {
            let option = OPTIONS[usize::from(option % 16)];
            json[option] = match value % 8 {
                0 => json!(value),
                1 => json!(1),
                2 => json!("auto"),
                3 => json!("low"),
                4 => json!(["a", key(*value)]),
                5 => json!({"effort": "low", "include_usage": true, "a": key(*value)}),
                6 => json!({"type": "function", "name": "look", "function": {"name": "look"}}),
                _ => json!(true),
            };
        }
        if let Some(props) = &self.props {
            json["x"] = props.value();
        }
    }

    fn ui_messages(&self) -> Value {
        let resume = self.resume.as_deref().unwrap_or_default();
        // Each message takes one of the decisions, which are also those about its calls.
        let decisions = resume.iter().map(Some).chain(std::iter::repeat(None));
        let messages = self.messages.iter().zip(decisions);
        let mut json = json!({
            "id": "t",
            "messages": messages.map(|(it, reply)| it.ui_message(reply)).collect::<Value>(),
        });
        if self.same_run {
            json["trigger"] = json!("regenerate-message");
        }
        if let Some((message, _)) = self.context.first() {
            json["messageId"] = json!(format!("m{}", message % 8));
        }
        if let Some(props) = &self.props {
            json["x"] = props.value();
        }
        if self.context.len() > 1 {
            json["resume"] = resume.iter().map(Entry::json).collect();
        }
        json
    }
}

fn tool((name, schema): &(Name, Option<Schema>)) -> Value {
    let mut tool = json!({"name": name.text(), "description": "A tool of the client."});
    if let Some(schema) = schema {
        tool["parameters"] = schema.json(0);
    }
    tool
}

impl Message {
    fn json(&self) -> Value {
        match self {
            Self::System(id, text) => {
                json!({"id": id.text("m"), "role": "system", "content": text})
            }
            Self::Developer(id, text) => {
                json!({"id": id.text("m"), "role": "developer", "content": text})
            }
            Self::User(id, content) => {
                json!({"id": id.text("m"), "role": "user", "content": content.json()})
            }
            Self::Assistant(id, text, calls, agent) => {
                let mut message = json!({"id": id.text("m"), "role": "assistant"});
                if let Some(text) = text {
                    message["content"] = json!(text);
                }
                if !calls.is_empty() {
                    message["toolCalls"] = calls.iter().map(Call::json).collect();
                }
                if let Some(agent) = agent {
                    message["subagentRunId"] = json!(format!("s{}", agent % 3));
                }
                message
            }
            Self::Tool(id, call, content, error, agent) => {
                let mut message = json!({
                    "id": id.text("m"), "role": "tool", "toolCallId": call.text("c"),
                    "content": content.json(),
                });
                if let Some(error) = error {
                    message["error"] = json!(error);
                }
                if let Some(agent) = agent {
                    message["subagentRunId"] = json!(format!("s{}", agent % 3));
                }
                message
            }
            Self::Reasoning(id, text) => {
                json!({"id": id.text("m"), "role": "reasoning", "content": text})
            }
            Self::Activity(id, content) => json!({
                "id": id.text("m"), "role": "activity", "activityType": "a",
                "content": {"a": content.value()},
            }),
        }
    }
}

impl Message {
    fn chat(&self) -> Value {
        match self {
            Self::System(_, text) => json!({"role": "system", "content": text}),
            Self::Developer(_, text) => json!({"role": "developer", "content": text}),
            Self::User(_, content) => json!({"role": "user", "content": content.openai("")}),
            Self::Assistant(_, text, calls, refused) => {
                let mut message = json!({"role": "assistant"});
                let field = if refused.is_some() {
                    "refusal"
                } else {
                    "content"
                };
                message[field] = json!(text);
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(Call::json).collect();
                }
                message
            }
            Self::Tool(_, call, content, ..) => json!({
                "role": "tool", "tool_call_id": call.text("c"), "content": content.openai(""),
            }),
            Self::Reasoning(_, text) => json!({
                "role": "assistant", "content": [{"type": "refusal", "refusal": text}],
            }),
            Self::Activity(_, content) => json!({"role": "user", "content": content.value()}),
        }
    }

    fn items(&self) -> Vec<Value> {
        match self {
            Self::System(..) | Self::Developer(..) => vec![self.chat()],
            Self::User(_, content) => {
                vec![json!({"role": "user", "content": content.openai("input_")})]
            }
            Self::Assistant(_, text, calls, _) => {
                let text = text.iter().map(|text| {
                    json!({
                        "type": "message", "role": "assistant",
                        "content": [{"type": "output_text", "text": text}],
                    })
                });
                let calls = calls.iter().map(|call| {
                    json!({
                        "type": "function_call", "call_id": call.id.text("c"),
                        "name": call.tool.text(), "arguments": call.arguments.text(),
                    })
                });
                text.chain(calls).collect()
            }
            Self::Tool(_, call, content, ..) => vec![json!({
                "type": "function_call_output", "call_id": call.text("c"),
                "output": content.openai("input_"),
            })],
            Self::Reasoning(_, text) => vec![json!({"type": "reasoning", "summary": [text]})],
            Self::Activity(_, content) => vec![content.value()],
        }
    }

    fn ui_message(&self, reply: Option<&Entry>) -> Value {
        match self {
            Self::System(id, text) | Self::Developer(id, text) => json!({
                "id": id.text("m"), "role": "system", "parts": [{"type": "text", "text": text}],
            }),
            Self::User(id, content) => {
                json!({"id": id.text("m"), "role": "user", "parts": content.ui_parts()})
            }
            Self::Assistant(id, text, calls, kind) => {
                let text = text.iter();
                let mut parts = vec![json!({"type": "step-start"})];
                parts.extend(text.map(|text| json!({"type": "text", "text": text})));
                let kind = kind.unwrap_or_default();
                parts.extend(calls.iter().map(|call| call.ui_part(kind, reply)));
                json!({"id": id.text("m"), "role": "assistant", "parts": parts})
            }
            Self::Tool(id, _, content, ..) => {
                json!({"id": id.text("m"), "role": "assistant", "parts": content.ui_parts()})
            }
            Self::Reasoning(id, text) => json!({
                "id": id.text("m"), "role": "assistant",
                "parts": [{"type": "reasoning", "text": text}, {"type": "data-a", "data": text}],
            }),
            Self::Activity(id, content) => {
                json!({"id": id.text("m"), "role": "user", "parts": [content.value()]})
            }
        }
    }
}

impl Call {
    fn json(&self) -> Value {
        json!({
            "id": self.id.text("c"), "type": "function",
            "function": {"name": self.tool.text(), "arguments": self.arguments.text()},
        })
    }

    /// A part of a message of `useChat`, in one of the states of a call.
    fn ui_part(&self, kind: u8, reply: Option<&Entry>) -> Value {
        let states = [
            "output-available",
            "output-error",
            "output-denied",
            "input-available",
            "input-streaming",
            "approval-requested",
            "approval-responded",
        ];
        let state = match reply {
            Some(_) => "approval-responded",
            None => states[usize::from(kind % 7)],
        };
        let tool = self.tool.text();
        let mut part = json!({
            "type": format!("tool-{tool}"), "toolCallId": self.id.text("c"), "state": state,
            "output": self.arguments.text(), "errorText": "late",
        });
        if kind & 8 != 0 {
            part["type"] = json!("dynamic-tool");
            part["toolName"] = json!(tool);
        }
        match &self.arguments {
            Arguments::Empty => {}
            Arguments::Json(json) => part["input"] = json.value(),
            Arguments::Text(text) => part["rawInput"] = json!(text),
        }
        if let Some(reply) = reply {
            let reply = reply.json();
            part["approval"] = json!({
                "id": reply["interruptId"], "approved": reply["payload"]["approved"],
                "signature": reply["payload"]["token"],
            });
        }
        part
    }
}

impl Arguments {
    fn text(&self) -> String {
        match self {
            Self::Empty => "{}".to_owned(),
            Self::Json(json) => json.value().to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl Content {
    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Parts(parts) => parts.iter().map(Part::json).collect(),
        }
    }
}

impl Content {
    /// The content of OpenAI's APIs, with this prefix of the types of parts.
    fn openai(&self, prefix: &str) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Parts(parts) => parts.iter().map(|part| part.openai(prefix)).collect(),
        }
    }

    fn ui_parts(&self) -> Value {
        match self {
            Self::Text(text) => json!([{"type": "text", "text": text}]),
            Self::Parts(parts) => parts.iter().map(Part::ui_part).collect(),
        }
    }
}

impl Part {
    fn openai(&self, prefix: &str) -> Value {
        let part = self.json();
        let source = &part["source"];
        let url = match source["type"].as_str() {
            Some("data") => json!(format!(
                "data:{};base64,{}",
                source["mimeType"].as_str().unwrap_or_default(),
                source["value"].as_str().unwrap_or_default(),
            )),
            _ => source["value"].clone(),
        };
        let is_item = !prefix.is_empty();
        match self {
            Self::Text(text) => json!({"type": format!("{prefix}text"), "text": text}),
            Self::File(..) if is_item => json!({"type": "input_file", "file_id": url}),
            Self::File(..) => json!({"type": "file", "file": {"file_id": url}}),
            _ if part["type"] == "audio" => json!({
                "type": "input_audio",
                "input_audio": {"data": source["value"], "format": "wav"},
            }),
            _ if part["type"] == "document" && is_item => {
                json!({"type": "input_file", "filename": "a", "file_data": url})
            }
            _ if part["type"] == "document" => {
                json!({"type": "file", "file": {"filename": "a", "file_data": url}})
            }
            _ if is_item => json!({"type": "input_image", "image_url": url}),
            _ => json!({"type": "image_url", "image_url": {"url": url}}),
        }
    }

    fn ui_part(&self) -> Value {
        let part = self.openai("");
        let url = &part["image_url"]["url"];
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::File(..) => json!({"type": "source-url", "sourceId": "s", "url": "https://a.b"}),
            _ if url.is_null() => json!({"type": "file", "mediaType": "", "url": "data:,"}),
            _ => json!({"type": "file", "mediaType": "image/png", "url": url}),
        }
    }

    fn json(&self) -> Value {
        let kind = |kind: u8| ["image", "audio", "video", "document"][usize::from(kind % 4)];
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Data(of, bytes) => {
                let mime = ["image/png", "audio/wav", "application/pdf", "", "x"];
                let mime = mime[usize::from(of.wrapping_add(bytes.len() as u8) % 5)];
                let value: String = match bytes.len() % 2 {
                    0 => bytes
                        .iter()
                        .map(|byte| char::from(b'A' + byte % 26))
                        .collect(),
                    _ => "AAAA".repeat(bytes.len() % 7),
                };
                json!({"type": kind(*of), "source": {"type": "data", "value": value, "mimeType": mime}})
            }
            Self::Url(of, which) => {
                let url = [
                    "https://example.com/a.png",
                    "http://127.0.0.1/",
                    "gs://bucket/a",
                    "data:image/png;base64,AAAA",
                    "data:,",
                    "file:///etc/passwd",
                    "",
                ];
                json!({"type": kind(*of), "source": {"type": "url", "value": url[usize::from(which % 7)]}})
            }
            Self::File(of, which) => json!({
                "type": kind(*of),
                "source": {"type": "file", "value": format!("file-{which}"), "mimeType": "image/png"},
            }),
        }
    }
}

impl Schema {
    fn json(&self, depth: usize) -> Value {
        if depth > 60 {
            return json!({});
        }
        match self {
            Self::Any(json) => json.value(),
            Self::Object(fields, required) => json!({
                "type": "object",
                "properties": fields.iter()
                    .map(|(name, schema)| (key(*name), schema.json(depth + 1)))
                    .collect::<Map<_, _>>(),
                "required": required.iter().map(|name| key(*name)).collect::<Vec<_>>(),
            }),
            Self::Ref(to) => match to % 4 {
                0 => json!({"$ref": "#"}),
                _ => json!({"$ref": format!("#/$defs/{}", key(*to))}),
            },
            Self::Defs(defs, schema) => {
                let mut schema = schema.json(depth + 1);
                let defs = defs.iter();
                let defs: Map<_, _> = defs
                    .map(|(name, schema)| (key(*name), schema.json(depth + 1)))
                    .collect();
                if let Some(schema) = schema.as_object_mut() {
                    schema.insert("$defs".to_owned(), Value::Object(defs));
                }
                schema
            }
            Self::Enum(values) => {
                json!({"enum": values.iter().map(Json::value).collect::<Value>()})
            }
            Self::List(items) => json!({"type": "array", "items": items.json(depth + 1)}),
            Self::AnyOf(schemas) => json!({
                "anyOf": schemas.iter().map(|s| s.json(depth + 1)).collect::<Value>(),
            }),
            Self::Type(which) => {
                let types = [
                    "string", "integer", "number", "boolean", "null", "object", "array", "?",
                ];
                json!({"type": types[usize::from(which % 8)]})
            }
        }
    }
}

impl Entry {
    fn json(&self) -> Value {
        let (message, call) = (self.message.text("m"), self.call.text("c"));
        let id = format!("{message}/{}/{call}", self.position % 4);
        let payload = match &self.payload {
            Payload::None => None,
            Payload::Approve => Some(json!({"approved": true})),
            Payload::Deny => Some(json!({"approved": false, "reason": "no"})),
            Payload::Edit(json) => Some(json!({"approved": true, "editedArgs": json.value()})),
            Payload::Result(json) => Some(json!({"result": json.value()})),
            Payload::Token(token) => Some(json!({"approved": true, "token": token})),
            Payload::Any(json) => Some(json.value()),
        };
        let status = if self.cancelled {
            "cancelled"
        } else {
            "resolved"
        };
        let mut entry = json!({"interruptId": id, "status": status});
        if let Some(payload) = payload {
            entry["payload"] = payload;
        }
        entry
    }
}
