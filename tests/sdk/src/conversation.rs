//! Provider-neutral conversations, which are stored in `tests/sdk/conversations`.

use crate::api;
use concentric_core::{
    Author, CallId, ChatRequest, Executor, Media, MediaSource, Message, OutputSchema, Part,
    PartKind, ProviderData, Role, Round, SystemSegment, ToolCallPart, ToolChoice, ToolContent,
    ToolOutcome, ToolResult, ToolSpec, ToolStatus, Turn,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, error::Error, sync::Arc};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conversation {
    #[serde(default)]
    system: Vec<String>,
    messages: Vec<Said>,
    #[serde(default)]
    tools: Vec<Tool>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
    output: Option<Output>,
    max_output_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    #[serde(default)]
    stop: Vec<String>,
    seed: Option<i64>,
    reasoning_effort: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
    /// Fields that are specific to an API, by API.
    #[serde(default)]
    provider: BTreeMap<String, Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Said {
    System(String),
    User(Vec<Piece>),
    /// A message that no known model wrote.
    Assistant(Vec<Piece>),
    /// A message from the model of another provider, with opaque data of that provider.
    Elsewhere(Vec<Piece>),
    /// A message from the API's own model: its response, by API.
    Answer(BTreeMap<String, Value>),
    /// The results of the preceding calls, in order.
    Results(Vec<Outcome>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Piece {
    text: Option<String>,
    /// The number of repetitions of the text.
    times: Option<usize>,
    reasoning: Option<String>,
    refusal: Option<String>,
    image: Option<Bytes>,
    audio: Option<Bytes>,
    file: Option<Bytes>,
    call: Option<Call>,
    /// The opaque data of the message's provider, with the other content here or alone.
    opaque: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bytes {
    base64: Option<String>,
    url: Option<String>,
    id: Option<String>,
    r#type: String,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    #[serde(default)]
    executor: Executor,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outcome {
    content: Vec<Piece>,
    status: Option<ToolStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    #[serde(default)]
    description: String,
    schema: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Choice {
    Auto,
    None,
    Required,
    Tool(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    name: String,
    schema: Value,
    strict: bool,
}

impl Conversation {
    /// Returns `true` if `api` can express it: messages of an API's own model are only for that
    /// API. Moderation has only texts and images of the user.
    pub(crate) fn is_for(&self, api: &str) -> bool {
        let is_moderation = api == api::MODERATIONS;
        let is_moderated = |piece: &Piece| piece.text.is_some() || piece.image.is_some();
        let has_more = !(self.system.is_empty() && self.tools.is_empty());
        !(is_moderation && has_more)
            && self.messages.iter().all(|said| match said {
                Said::Answer(answers) => answers.contains_key(api),
                Said::User(pieces) => !is_moderation || pieces.iter().all(is_moderated),
                _ => !is_moderation,
            })
    }

    /// Creates the request to `api`.
    pub(crate) async fn request(&self, api: &str) -> Result<ChatRequest, Box<dyn Error>> {
        let mut request = ChatRequest::user("");
        request.transcript = concentric_core::Transcript::new();
        for segment in &self.system {
            request.system.push(SystemSegment::new(segment.as_str()));
        }
        for tool in &self.tools {
            let schema = tool.schema.clone();
            let spec = ToolSpec::new(tool.name.as_str(), tool.description.as_str(), schema);
            request.tools.push(Arc::new(spec));
        }
        let options = request.options_mut();
        options.tool_choice = self.tool_choice.as_ref().map(|choice| match choice {
            Choice::Auto => ToolChoice::Auto,
            Choice::None => ToolChoice::None,
            Choice::Required => ToolChoice::Required,
            Choice::Tool(name) => ToolChoice::Tool(name.as_str().into()),
        });
        options.parallel_tool_calls = self.parallel_tool_calls;
        options.output_schema = self.output.as_ref().map(|output| {
            let mut schema = OutputSchema::new(output.name.as_str(), output.schema.clone());
            schema.strict = output.strict;
            schema
        });
        options.max_output_tokens = self.max_output_tokens;
        options.temperature = self.temperature;
        options.top_p = self.top_p;
        options.frequency_penalty = self.frequency_penalty;
        options.presence_penalty = self.presence_penalty;
        options.stop = self.stop.iter().map(|text| text.as_str().into()).collect();
        options.seed = self.seed;
        options.reasoning_effort = self.reasoning_effort.as_deref().map(Into::into);
        options.metadata = self.metadata.clone();
        options.provider = self.provider.get(api).cloned().unwrap_or_default();

        // A message with calls waits for their results.
        let mut open: Option<Message> = None;
        for said in &self.messages {
            let message = match said {
                Said::System(text) => Message::new(Role::System, vec![Part::text(text.as_str())]),
                Said::User(pieces) => message(Role::User, pieces, &Author::User)?,
                Said::Assistant(pieces) => message(Role::Assistant, pieces, &Author::Unknown)?,
                Said::Elsewhere(pieces) => {
                    let author = Author::Model {
                        provider: ELSEWHERE.into(),
                        model: "another-model".into(),
                    };
                    message(Role::Assistant, pieces, &author)?
                }
                Said::Answer(answers) => {
                    let answered = api::call(api, false, answers.get(api), request.clone());
                    answered.await.0?.message
                }
                Said::Results(outcomes) => {
                    let message = open.take().ok_or("results without calls")?;
                    let results = results(&message, outcomes)?;
                    request.transcript.push(Round::new(message, results)?);
                    continue;
                }
            };
            let calls = message.tool_calls();
            if calls.filter(|call| call.executor == Executor::Loop).count() > 0 {
                open = Some(message);
            } else {
                request.transcript.push(Turn::message(message)?);
            }
        }
        Ok(request)
    }
}

/// An unknown provider.
const ELSEWHERE: &str = "elsewhere";

fn message(role: Role, pieces: &[Piece], author: &Author) -> Result<Message, Box<dyn Error>> {
    let parts = pieces.iter().map(|piece| part(piece, author));
    Ok(Message::new(role, parts.collect::<Result<_, _>>()?))
}

fn part(piece: &Piece, author: &Author) -> Result<Part, Box<dyn Error>> {
    let data = |data: &Value| ProviderData::new(ELSEWHERE, data.clone());
    let kind = if let Some(text) = &piece.text {
        PartKind::Text(text.repeat(piece.times.unwrap_or(1)).into())
    } else if let Some(text) = &piece.reasoning {
        PartKind::Reasoning(text.as_str().into())
    } else if let Some(text) = &piece.refusal {
        PartKind::Refusal(text.as_str().into())
    } else if let Some(image) = &piece.image {
        PartKind::Image(media(image)?)
    } else if let Some(audio) = &piece.audio {
        PartKind::Audio(media(audio)?)
    } else if let Some(file) = &piece.file {
        PartKind::File(media(file)?)
    } else if let Some(call) = &piece.call {
        let id = CallId::new(call.id.as_str());
        let part = ToolCallPart::new(id, call.name.as_str(), call.arguments.as_str());
        PartKind::ToolCall(part.executed_by(call.executor))
    } else {
        let opaque = piece.opaque.as_ref().ok_or("an empty piece")?;
        return Ok(Part::new(PartKind::Provider(data(opaque))).by(author.clone()));
    };
    let opaque = piece.opaque.as_ref().map(|opaque| Arc::new(data(opaque)));
    Ok(Part::new(kind)
        .by(author.clone())
        .with_provider_data(opaque))
}

fn media(bytes: &Bytes) -> Result<Media, Box<dyn Error>> {
    let source = match (&bytes.base64, &bytes.url, &bytes.id) {
        (Some(base64), None, None) => MediaSource::Base64(base64.as_str().into()),
        (None, Some(url), None) => MediaSource::Url(url.as_str().into()),
        (None, None, Some(id)) => MediaSource::Id(id.as_str().into()),
        _ => return Err("media need exactly one source".into()),
    };
    let mut media = Media::new(source).with_media_type(bytes.r#type.as_str());
    media.name = bytes.name.as_deref().map(Into::into);
    Ok(media)
}

fn results(of: &Message, outcomes: &[Outcome]) -> Result<Vec<ToolResult>, Box<dyn Error>> {
    let calls = of.tool_calls();
    let calls: Vec<_> = calls
        .filter(|call| call.executor == Executor::Loop)
        .collect();
    if calls.len() != outcomes.len() {
        return Err("the number of results differs from the number of calls".into());
    }
    let results = calls.iter().zip(outcomes).map(|(call, outcome)| {
        let content = match &*outcome.content {
            [
                Piece {
                    text: Some(text), ..
                },
            ] => ToolContent::Text(text.as_str().into()),
            pieces => {
                let author = Author::Tool {
                    name: call.name.clone(),
                };
                ToolContent::Parts(message(Role::Tool, pieces, &author)?.parts)
            }
        };
        let mut made = ToolOutcome::done(String::new());
        made.content = content;
        made.status = outcome.status.unwrap_or(ToolStatus::Done);
        Ok(ToolResult::new(call.id.clone(), call.name.clone(), made))
    });
    results.collect()
}
