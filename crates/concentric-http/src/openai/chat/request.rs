use concentric_core::{ChatRequest, PartKind, Str, System};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Map, Value, value::RawValue};
use std::{collections::BTreeMap, fmt, num::NonZeroU32};

use super::{
    super::{
        content::Content,
        failure::Failure,
        history::{Assistant, Call, Form, History, Item},
        input::{Input, Job, Opening, Sampling},
        stored::Before,
        tools::{Choice, Format, Tool, chosen, specs},
    },
    encode::Chat,
};
use crate::policy::ClientPolicy;

const FORM: Form = Form {
    field: "messages",
    calls: "tool_calls",
    is_split: false,
};

/// The body of a request. Unknown fields are ignored.
#[derive(Deserialize)]
pub(in crate::openai) struct ChatInput {
    model: Option<Str>,
    messages: Vec<Message>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Format>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    max_completion_tokens: Option<NonZeroU32>,
    max_tokens: Option<NonZeroU32>,
    stop: Option<Stop>,
    seed: Option<i64>,
    reasoning_effort: Option<Str>,
    metadata: Option<Map<String, Value>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u64>,
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    modalities: Option<Vec<Str>>,
    audio: Option<IgnoredAny>,
    functions: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
    web_search_options: Option<IgnoredAny>,
    logit_bias: Option<Map<String, Value>>,
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// One stop sequence, or several.
struct Stop(Vec<Str>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StopVisitor;

        impl<'de> Visitor<'de> for StopVisitor {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop(vec![text.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Stop, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Stop)
            }
        }

        deserializer.deserialize_any(StopVisitor)
    }
}

struct Message(Item);

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            role: Role,
            content: Option<Content>,
            refusal: Option<Str>,
            tool_calls: Option<Vec<ToolCall>>,
            tool_call_id: Option<Str>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Role {
            Developer,
            System,
            User,
            Assistant,
            Tool,
        }

        #[derive(Deserialize)]
        struct ToolCall {
            id: Str,
            function: Function,
        }

        #[derive(Deserialize)]
        struct Function {
            name: Str,
            arguments: Str,
        }

        let message = Fields::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        let required = |content: Option<Content>| content.ok_or_else(|| missing("content"));
        Ok(Self(match message.role {
            Role::Developer => Item::System {
                role: "developer",
                content: required(message.content)?,
            },
            Role::System => Item::System {
                role: "system",
                content: required(message.content)?,
            },
            Role::User => Item::User(required(message.content)?),
            Role::Assistant => {
                let mut content = message.content.map(Content::into_parts).unwrap_or_default();
                content.extend(message.refusal.map(PartKind::Refusal));
                let calls = message.tool_calls.unwrap_or_default();
                let calls = calls.into_iter().map(|call| Call {
                    id: call.id,
                    name: call.function.name,
                    arguments: call.function.arguments,
                });
                Item::Assistant(Assistant {
                    content,
                    calls: calls.collect(),
                })
            }
            Role::Tool => Item::Tool {
                call_id: message
                    .tool_call_id
                    .ok_or_else(|| missing("tool_call_id"))?,
                content: required(message.content)?,
            },
        }))
    }
}

impl Input for ChatInput {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn job(
        self,
        policy: &ClientPolicy,
        opening: Opening,
        before: Before,
        _: BTreeMap<Str, Box<RawValue>>,
    ) -> Result<Job, Failure> {
        self.check()?;
        let tools = specs(self.tools.unwrap_or_default(), policy)?;
        let tool_choice = chosen(self.tool_choice, &tools)?;
        let items: Vec<Item> = self
            .messages
            .into_iter()
            .map(|Message(item)| item)
            .collect();
        if items.is_empty() {
            return Err(Failure::invalid(
                "messages",
                "expected at least one message",
            ));
        }
        let history = History::new(items, &tools, policy, &FORM, before)?;
        let mut request = ChatRequest::new(history.transcript);
        request.system = history.system;
        request.tools = tools;
        let options = request.options_mut();
        options.tool_choice = tool_choice;
        options.parallel_tool_calls = self.parallel_tool_calls;
        options.output_schema = match self.response_format {
            Some(format) => format.schema("response_format")?,
            None => None,
        };
        let limit = self.max_completion_tokens.or(self.max_tokens);
        options.max_output_tokens = limit.map(NonZeroU32::get);
        options.stop = self.stop.map(|Stop(stop)| stop).unwrap_or_default();
        options.seed = self.seed;
        options.reasoning_effort = self.reasoning_effort;
        options.metadata = self.metadata.unwrap_or_default();
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
        }
        .apply(options)?;
        let with_usage = self.stream_options.unwrap_or_default().include_usage;
        Ok(Job {
            request,
            calls: history.calls,
            is_streamed: self.stream.unwrap_or(false),
            thread: None,
            system: System::default(),
            encoder: Box::new(Chat::new(opening, with_usage.unwrap_or(false))),
        })
    }
}

impl ChatInput {
    /// Rejects parameters that would change the answer and are not supported.
    fn check(&self) -> Result<(), Failure> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(Failure::unsupported(
                "n",
                "there is one answer for a request",
            ));
        }
        if self.logprobs == Some(true) || self.top_logprobs.is_some_and(|n| n > 0) {
            return Err(Failure::unsupported(
                "logprobs",
                "logprobs are not available",
            ));
        }
        if self
            .logit_bias
            .as_ref()
            .is_some_and(|bias| !bias.is_empty())
        {
            return Err(Failure::unsupported(
                "logit_bias",
                "this field is not supported",
            ));
        }
        let modalities = self.modalities.as_deref().unwrap_or_default();
        if modalities.iter().any(|modality| *modality != "text") {
            return Err(Failure::unsupported("modalities", "answers are text only"));
        }
        let fields = [
            ("audio", &self.audio),
            ("functions", &self.functions),
            ("function_call", &self.function_call),
            ("web_search_options", &self.web_search_options),
        ];
        match fields.iter().find(|(_, value)| value.is_some()) {
            Some((field, _)) => Err(Failure::unsupported(field, "this field is not supported")),
            None => Ok(()),
        }
    }
}
