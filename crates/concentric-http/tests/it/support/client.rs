//! A test client that stores the conversation.

use super::{post, send};
use bytes::Bytes;
use concentric_core::{BoxModel, store::Tenant};
use concentric_http::ag_ui::AgUiLayer;
use http_body_util::Full;
use serde_json::{Value, json};
use tower::Layer;

/// A client that stores the conversation like `@ag-ui/client`.
#[derive(Clone)]
pub struct Client {
    pub messages: Vec<Value>,
    pub tools: Value,
    pub tenant: Option<Tenant>,
    pub pending: Vec<Value>,
    pub runs: usize,
}

impl Client {
    pub fn new() -> Self {
        Self {
            messages: vec![json!({"id": "u0", "role": "user", "content": "hi"})],
            tools: json!([]),
            tenant: None,
            pending: Vec::new(),
            runs: 0,
        }
    }

    pub fn add_message(&mut self, text: &str) {
        let id = format!("u{}", self.messages.len());
        self.messages
            .push(json!({"id": id, "role": "user", "content": text}));
    }

    pub fn request(&self, resume: &Value) -> http::Request<Full<Bytes>> {
        let input = json!({"threadId": "t", "runId": format!("r{}", self.runs),
            "messages": self.messages, "tools": self.tools, "resume": resume});
        let mut request = post(input.to_string());
        if let Some(tenant) = &self.tenant {
            request.extensions_mut().insert(tenant.clone());
        }
        request
    }

    /// Executes a run, and returns its events, which must be a legal stream.
    pub async fn run(&mut self, agent: &BoxModel, resume: Value) -> Vec<Value> {
        let service = AgUiLayer::new().layer(agent.clone());
        let request = self.request(&resume);
        self.runs += 1;
        let events = send(service, request).await.events();
        for event in &events {
            self.apply(event);
        }
        events
    }

    fn message(&mut self, id: &Value) -> &mut Value {
        let at = self.messages.iter().position(|m| m["id"] == *id);
        let at = at.unwrap_or_else(|| {
            self.messages.push(json!({"id": id, "role": "assistant"}));
            self.messages.len() - 1
        });
        &mut self.messages[at]
    }

    fn apply(&mut self, event: &Value) {
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" => {
                let message = self.message(&event["messageId"]);
                message["content"] = "".into();
                attribute(message, event);
            }
            "TEXT_MESSAGE_CONTENT" => {
                let message = self.message(&event["messageId"]);
                let text = message["content"].as_str().unwrap_or_default();
                message["content"] = format!("{text}{}", event["delta"].as_str().unwrap()).into();
            }
            "TOOL_CALL_START" => {
                let call = json!({"id": event["toolCallId"], "type": "function",
                    "function": {"name": event["toolCallName"], "arguments": ""}});
                let message = self.message(&event["parentMessageId"]);
                attribute(message, event);
                match message["toolCalls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => message["toolCalls"] = json!([call]),
                }
            }
            "TOOL_CALL_ARGS" => {
                let call = self.call(event["toolCallId"].as_str().unwrap());
                let text = call["function"]["arguments"].as_str().unwrap();
                let text = format!("{text}{}", event["delta"].as_str().unwrap());
                call["function"]["arguments"] = text.into();
            }
            "TOOL_CALL_RESULT" => {
                let mut message = json!({"id": event["messageId"], "role": "tool",
                    "toolCallId": event["toolCallId"], "content": event["content"]});
                if event["metadata"].is_object() {
                    message["metadata"] = event["metadata"].clone();
                }
                attribute(&mut message, event);
                self.messages.push(message);
            }
            "RUN_FINISHED" => {
                let interrupts = event["outcome"]["interrupts"].as_array();
                self.pending = interrupts.cloned().unwrap_or_default();
            }
            _ => {}
        }
    }

    pub fn call(&mut self, id: &str) -> &mut Value {
        let calls = self
            .messages
            .iter_mut()
            .filter_map(|message| message["toolCalls"].as_array_mut());
        calls.flatten().find(|call| call["id"] == *id).unwrap()
    }

    pub fn results(&self, call: &str) -> Vec<&str> {
        let results = self.messages.iter().filter(|m| m["toolCallId"] == *call);
        results.map(|m| m["content"].as_str().unwrap()).collect()
    }

    /// A reply to each interrupt, with `payload` and the interrupt's token.
    pub fn answers(&self, payload: &Value) -> Value {
        self.pending
            .iter()
            .map(|asked| answer(asked, payload))
            .collect()
    }

    pub fn last_text(&self) -> &str {
        self.messages.last().unwrap()["content"].as_str().unwrap()
    }
}

pub fn answer(asked: &Value, payload: &Value) -> Value {
    let mut payload = payload.clone();
    if asked["metadata"]["token"].is_string() {
        payload["token"] = asked["metadata"]["token"].clone();
    }
    json!({"interruptId": asked["id"], "status": "resolved", "payload": payload})
}

pub fn approved() -> Value {
    json!({"approved": true})
}

pub fn end(events: &[Value]) -> &Value {
    events.last().unwrap()
}

fn attribute(message: &mut Value, event: &Value) {
    if event["subagentRunId"].is_string() {
        message["subagentRunId"] = event["subagentRunId"].clone();
    }
}
