use concentric_core::{ChatRequest, Str, SystemSegment};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, value::RawValue};
use std::{collections::BTreeMap, num::NonZeroU32};

use super::{
    super::{
        failure::Failure,
        history::{Form, History},
        input::{Input, Job, Opening, Sampling},
        stored::Before,
        tools::{Choice, Format, Tool, chosen, specs},
    },
    encode::Responses,
    items::Items,
};
use crate::policy::ClientPolicy;

const FORM: Form = Form {
    field: "input",
    calls: "call_id",
    is_split: true,
};

/// The item of `include` that requests log probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The body of a request. Unknown fields are ignored.
#[derive(Deserialize)]
pub(in crate::openai) struct ResponsesInput {
    model: Option<Str>,
    input: Option<Items>,
    instructions: Option<Str>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
    text: Option<Text>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_output_tokens: Option<NonZeroU32>,
    reasoning: Option<Reasoning>,
    metadata: Option<Map<String, Value>>,
    stream: Option<bool>,
    background: Option<bool>,
    top_logprobs: Option<u64>,
    store: Option<bool>,
    previous_response_id: Option<Str>,
    conversation: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    max_tool_calls: Option<IgnoredAny>,
    include: Option<Vec<Str>>,
}

#[derive(Deserialize)]
struct Text {
    format: Option<Format>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<Str>,
}

impl Input for ResponsesInput {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn previous(&self) -> Option<&str> {
        self.previous_response_id.as_deref()
    }

    fn is_kept(&self) -> bool {
        self.store.unwrap_or(true)
    }

    fn is_background(&self) -> bool {
        self.background.unwrap_or(false)
    }

    fn references(&self) -> Vec<&str> {
        self.input
            .as_ref()
            .map(Items::references)
            .unwrap_or_default()
    }

    fn job(
        self,
        policy: &ClientPolicy,
        opening: Opening,
        before: Before,
        referenced: BTreeMap<Str, Box<RawValue>>,
    ) -> Result<Job, Failure> {
        self.check()?;
        let tools = specs(self.tools.unwrap_or_default(), policy)?;
        let tool_choice = chosen(self.tool_choice, &tools)?;
        let Some(items) = self.input else {
            return Err(Failure::invalid("input", "missing field"));
        };
        if items.is_empty() {
            return Err(Failure::invalid("input", "expected at least one item"));
        }
        let items = items.resolve(referenced)?;
        let history = History::new(items, &tools, policy, &FORM, before)?;
        let mut request = ChatRequest::new(history.transcript);
        request.system = history.system.clone();
        let thread = match history.resume {
            Some((thread, resume)) => {
                if self.previous_response_id.is_some() && thread != opening.thread {
                    let problem = "an approval request is not of this conversation";
                    return Err(Failure::invalid("input", problem));
                }
                request.resume = Some(resume);
                thread
            }
            None => opening.thread.clone(),
        };
        if let Some(instructions) = &self.instructions {
            policy.check_system(|| "instructions".to_owned(), "system")?;
            let instructions = SystemSegment::new(instructions.clone());
            request.system.push_front(instructions);
        }
        request.tools = tools;
        let options = request.options_mut();
        options.tool_choice = tool_choice;
        options.parallel_tool_calls = self.parallel_tool_calls;
        let format = self.text.and_then(|text| text.format);
        let is_any_object = format.as_ref().is_some_and(Format::is_any_object);
        options.output_schema = match format {
            Some(format) => format.schema("text.format")?,
            None => None,
        };
        options.max_output_tokens = self.max_output_tokens.map(NonZeroU32::get);
        options.reasoning_effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        options.metadata = self.metadata.unwrap_or_default();
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            ..Sampling::default()
        }
        .apply(options)?;
        let (instructions, previous) = (self.instructions, self.previous_response_id);
        let echo = (instructions.as_deref(), previous.as_deref(), is_any_object);
        let encoder = Responses::new(opening, thread.clone(), &request, echo);
        Ok(Job {
            request,
            calls: history.calls,
            is_streamed: self.stream.unwrap_or(false),
            thread: Some(thread),
            system: history.system,
            encoder: Box::new(encoder),
        })
    }
}

impl ResponsesInput {
    /// Rejects parameters that would change the answer and are not supported.
    fn check(&self) -> Result<(), Failure> {
        let include = self.include.as_deref().unwrap_or_default();
        if include.iter().any(|item| *item == LOGPROBS) {
            let problem = "logprobs are not available";
            return Err(Failure::unsupported("include", problem));
        }
        if self.top_logprobs.is_some_and(|n| n > 0) {
            return Err(Failure::unsupported(
                "top_logprobs",
                "logprobs are not available",
            ));
        }
        let stored = "conversations have no ids; use `previous_response_id`, or send the whole one in `input`";
        let fields = [
            ("conversation", &self.conversation, stored),
            ("prompt", &self.prompt, "prompts are not stored"),
            (
                "max_tool_calls",
                &self.max_tool_calls,
                "this field is not supported",
            ),
        ];
        match fields.iter().find(|(_, value, _)| value.is_some()) {
            Some((field, _, problem)) => Err(Failure::unsupported(field, problem)),
            None => Ok(()),
        }
    }
}
