use crate::{Json, key};
use arbitrary::Arbitrary;
use serde_json::{Map, Value, json};

/// A request to an AG-UI endpoint: what a client may write, with names that meet each other.
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
    /// The body of the request.
    pub fn json(&self) -> Value {
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

impl Call {
    fn json(&self) -> Value {
        let arguments = match &self.arguments {
            Arguments::Empty => "{}".to_owned(),
            Arguments::Json(json) => json.value().to_string(),
            Arguments::Text(text) => text.clone(),
        };
        json!({
            "id": self.id.text("c"), "type": "function",
            "function": {"name": self.tool.text(), "arguments": arguments},
        })
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

impl Part {
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
