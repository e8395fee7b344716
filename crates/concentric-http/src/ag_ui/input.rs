//! The request body.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::Message;
use super::{Metadata, Optional, wire};

/// The request that starts a run, or resumes a suspended one.
///
/// Unknown fields are ignored, since clients send more than the protocol defines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunAgentInput {
    /// The conversation.
    pub thread_id: String,
    /// The run, chosen by the client.
    pub run_id: String,
    /// The client's version of the protocol; absent before 1.0.
    #[serde(default, skip_serializing_if = "super::is_absent")]
    pub protocol_version: Option<String>,
    /// The run that this one continues or branches from.
    #[serde(default, skip_serializing_if = "super::is_absent")]
    pub parent_run_id: Option<String>,
    /// The client's copy of the state.
    #[serde(default, skip_serializing_if = "super::is_absent")]
    pub state: Option<Value>,
    /// The conversation so far, the new message last.
    pub messages: Vec<Message>,
    /// Tools that the client executes.
    #[serde(default)]
    pub tools: Vec<Tool>,
    /// Facts that the client's application offers to the agent.
    #[serde(default)]
    pub context: Vec<Context>,
    /// Application-defined data for the server.
    #[serde(default, skip_serializing_if = "super::is_absent")]
    pub forwarded_props: Option<Value>,
    /// Replies to the interrupts of the previous run.
    #[serde(default, skip_serializing_if = "super::is_absent")]
    pub resume: Option<Vec<ResumeEntry>>,
}

impl RunAgentInput {
    /// Creates an input with only these messages.
    pub fn new(
        thread_id: impl Into<String>,
        run_id: impl Into<String>,
        messages: impl Into<Vec<Message>>,
    ) -> Self {
        Self {
            thread_id: thread_id.into(),
            run_id: run_id.into(),
            protocol_version: None,
            parent_run_id: None,
            state: None,
            messages: messages.into(),
            tools: Vec::new(),
            context: Vec::new(),
            forwarded_props: None,
            resume: None,
        }
    }

    /// Parses a request body.
    ///
    /// # Errors
    ///
    /// The body is not JSON, or a field is missing or invalid. The error names the field, and its
    /// [`to_json`](InputError::to_json) is the body of a `400`.
    ///
    /// ```
    /// use concentric_http::ag_ui::RunAgentInput;
    ///
    /// let body = br#"{"threadId":"t","runId":"r","messages":[{"id":"1","role":"user","content":7}]}"#;
    /// let error = RunAgentInput::from_slice(body).unwrap_err();
    /// assert_eq!(error.field(), Some("messages[0].content"));
    /// ```
    pub fn from_slice(body: &[u8]) -> Result<Self, InputError> {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let input = serde_path_to_error::deserialize(&mut deserializer).map_err(InputError::at)?;
        deserializer.end().map_err(|error| InputError {
            field: None,
            source: error,
        })?;
        Ok(input)
    }
}

wire! {
    /// A tool that the client executes.
    Tool;
    required {
        /// The tool's name.
        name: String,
        /// The tool's purpose, for the model.
        description: String,
    }
    optional {
        /// A JSON Schema of its arguments.
        parameters: Value,
        /// Extra information.
        metadata: Metadata,
    }
}

wire! {
    /// A fact that the client's application offers to the agent.
    Context;
    required {
        /// The meaning of the value.
        description: String,
        /// The value.
        value: String,
    }
    optional {}
}

wire! {
    /// A reply to one interrupt.
    ResumeEntry;
    required {
        /// The id of the interrupt.
        interrupt_id: String,
        /// Whether the interrupt was answered.
        status: ResumeStatus,
    }
    optional {
        /// The answer.
        payload: Value,
        /// Extra information.
        metadata: Metadata,
    }
}

/// Whether an interrupt was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ResumeStatus {
    /// The interrupt was answered, with an optional payload.
    Resolved,
    /// The user declined to answer.
    Cancelled,
}

impl Optional for ResumeStatus {}

/// Error of parsing a request body.
///
/// ```
/// use concentric_http::ag_ui::RunAgentInput;
///
/// let error = RunAgentInput::from_slice(br#"{"threadId":"t","messages":[]}"#).unwrap_err();
/// assert_eq!(
///     error.to_json(),
///     r#"{"error":{"code":"invalid_request","message":"runId: missing field","field":"runId"}}"#,
/// );
/// ```
#[derive(Debug)]
pub struct InputError {
    field: Option<String>,
    source: serde_json::Error,
}

impl InputError {
    fn at(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        let path = error.path().to_string();
        let source = error.into_inner();
        if source.is_syntax() || source.is_eof() || source.is_io() {
            return Self {
                field: None,
                source,
            };
        }
        // serde reports a missing field at the value that lacks it.
        let message = source.to_string();
        let name = named(&message).map(|(_, name, _)| name);
        let field = match (path.as_str(), name) {
            (".", None) => None,
            (".", Some(name)) => Some(name.to_owned()),
            (_, None) => Some(path),
            (_, Some(name)) => Some(format!("{path}.{name}")),
        };
        Self { field, source }
    }

    /// The invalid field, as a path from the root of the body (`messages[1].content`); `None` if
    /// the body is not JSON, or not an object.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// The error as the JSON body of a `400`.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Inner<'a>,
        }

        #[derive(Serialize)]
        struct Inner<'a> {
            code: &'a str,
            message: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
        }

        let error = Inner {
            code: "invalid_request",
            message: self.to_string(),
            field: self.field(),
        };
        serde_json::to_string(&Body { error }).expect("strings are always JSON")
    }
}

/// Splits a message that begins with a field error into the problem, the field's name and the rest.
fn named(message: &str) -> Option<(&str, &str, &str)> {
    let (problem, rest) = ["missing field", "invalid field"]
        .iter()
        .find_map(|problem| Some((*problem, message.strip_prefix(problem)?.strip_prefix(" `")?)))?;
    let (name, rest) = rest.split_once('`')?;
    Some((problem, name, rest))
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.source.to_string();
        // The position in the body does not help, since bodies are generated.
        let message = match &self.field {
            Some(_) => message
                .rsplit_once(" at line ")
                .map_or(&*message, |(message, _)| message),
            None => &*message,
        };
        let Some(field) = &self.field else {
            return f.write_str(message);
        };
        match named(message) {
            Some(("missing field", ..)) => write!(f, "{field}: missing field"),
            Some((_, _, rest)) => write!(f, "{field}: {}", rest.trim_start_matches(": ")),
            None => write!(f, "{field}: {message}"),
        }
    }
}

impl Error for InputError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}
