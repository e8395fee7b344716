//! Serialization of a request for the Messages API.
//!
//! The serialized data are borrowed from the request.

mod content;
mod conversation;

pub(super) use self::conversation::{Conversation, NAMES};

use self::content::{Block, CacheControl, Kind};
use super::{
    PromptCache,
    messages::Messages,
    schema::{self, Input},
    thinking::{Plan, Thinking},
};
use crate::{
    api::Call,
    fields::{Fields, One, Typed},
    schema::Node,
};
use concentric_core::{ChatRequest, Stability, ToolChoice, ToolSpec};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// The body of a call.
pub(super) struct Wire<'a> {
    call: Call<'a>,
    api: &'a Messages,
    plan: Plan<'a>,
    conversation: Conversation<'a>,
    breakpoints: Breakpoints,
}

impl<'a> Wire<'a> {
    pub(super) fn new(
        call: Call<'a>,
        api: &'a Messages,
        mut plan: Plan<'a>,
        mut conversation: Conversation<'a>,
    ) -> Self {
        let breakpoints = Breakpoints::of(call.request, api.cache);
        if matches!(plan.thinking, Some(Thinking::Enabled { .. }))
            && conversation.is_in_round_without_thinking()
        {
            plan.thinking = None;
        }
        if let Some(control) = breakpoints.tail
            && !call.request.options.provider.contains_key("cache_control")
        {
            conversation.cache(control);
        }
        Self {
            call,
            api,
            plan,
            conversation,
            breakpoints,
        }
    }
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            call,
            api,
            plan,
            conversation,
            breakpoints,
        } = self;
        let request = call.request;
        let options = &*request.options;
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: &options.provider,
        };
        fields.put("model", call.model)?;
        fields.put("max_tokens", &plan.max_tokens)?;
        fields.put("stream", &call.streaming)?;
        let system = system(request, conversation, breakpoints);
        if !system.is_empty() {
            fields.put("system", &system)?;
        }
        fields.put("messages", conversation.messages())?;
        fields.put_some("container", conversation.container.as_ref())?;
        let tools = tools(request, &api.tools, breakpoints.tools);
        if !tools.is_empty() {
            fields.put("tools", &tools)?;
        }
        if !tools.is_empty() || options.provider.contains_key("tools") {
            let choice = choice(options.tool_choice.as_ref(), options.parallel_tool_calls);
            fields.put_some("tool_choice", choice.as_ref())?;
        }
        let format = options.output_schema.as_ref().map(|output| {
            // `check` has rejected schemas that cannot be converted.
            let schema = schema::output(&output.schema).unwrap_or(Node::Kept(&output.schema));
            Typed::new("json_schema", One("schema", schema))
        });
        if plan.effort.is_some() || format.is_some() {
            let effort = plan.effort;
            fields.put("output_config", &OutputConfig { effort, format })?;
        }
        fields.put_some("thinking", plan.thinking.as_ref())?;
        fields.put_some("temperature", options.temperature.as_ref())?;
        fields.put_some("top_p", options.top_p.as_ref())?;
        if !options.stop.is_empty() {
            fields.put("stop_sequences", &options.stop)?;
        }
        if let Some(Value::String(user_id)) = options.metadata.get("user_id") {
            fields.put("metadata", &One("user_id", user_id))?;
        }
        fields.end()
    }
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Typed<One<Node<'a>>>>,
}

/// The breakpoints of the prompt cache: at most four.
#[derive(Debug, Default)]
struct Breakpoints {
    tools: Option<CacheControl>,
    /// The system segments with a breakpoint: for each stability except the lowest, the last
    /// segment that has no less stable segment before it.
    system: [Option<(usize, CacheControl)>; 3],
    tail: Option<CacheControl>,
}

impl Breakpoints {
    fn of(request: &ChatRequest, cache: PromptCache) -> Self {
        let ttl = match cache {
            PromptCache::Off => return Self::default(),
            PromptCache::FiveMinutes => None,
            PromptCache::OneHour => Some("1h"),
        };
        let control = CacheControl {
            r#type: "ephemeral",
            ttl,
        };
        let mut least = Stability::Fixed;
        let mut system = [None; 3];
        for (at, segment) in request.system.iter().enumerate() {
            if segment.text.trim().is_empty() {
                continue;
            }
            least = least.max(segment.stability);
            let place = match least {
                Stability::Fixed => 0,
                Stability::Thread => 1,
                Stability::Run => 2,
                _ => break,
            };
            if let Some(place) = system.get_mut(place) {
                *place = Some((at, control));
            }
        }
        Self {
            // A breakpoint of a fixed segment covers the tools before it.
            tools: system
                .first()
                .is_some_and(Option::is_none)
                .then_some(control),
            system,
            tail: (least <= Stability::Run).then_some(control),
        }
    }
}

fn system<'a>(
    request: &'a ChatRequest,
    conversation: &Conversation<'a>,
    breakpoints: &Breakpoints,
) -> Vec<Block<'a>> {
    let segments = request.system.iter().enumerate();
    let segments = segments.filter(|(_, segment)| !segment.text.trim().is_empty());
    let segments = segments.map(|(at, segment)| {
        let mut block = Block::new(Kind::Text(&segment.text));
        let here = breakpoints
            .system
            .iter()
            .flatten()
            .find(|(place, _)| *place == at);
        block.cache = here.map(|(_, control)| *control);
        block
    });
    let later = conversation
        .system
        .iter()
        .map(|text| Block::new(Kind::Text(text)));
    segments.chain(later).collect()
}

#[derive(Serialize)]
#[serde(untagged)]
enum Tool<'a> {
    /// A tool that the service defines, as configured on the layer.
    Theirs(&'a Value),
    Ours(Function<'a>),
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    input_schema: Input<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

fn tools<'a>(
    request: &'a ChatRequest,
    theirs: &'a [Value],
    cache: Option<CacheControl>,
) -> Vec<Tool<'a>> {
    let is_theirs = |spec: &&'a ToolSpec| {
        let mut names = theirs.iter().filter_map(|tool| tool.get("name")?.as_str());
        names.any(|name| spec.name == *name)
    };
    let ours = request.tools.iter().map(|spec| &**spec);
    let ours = ours.filter(|spec| !is_theirs(spec)).map(|spec| {
        Tool::Ours(Function {
            name: &spec.name,
            description: &spec.description,
            input_schema: Input(&spec.input_schema),
            cache_control: None,
        })
    });
    let mut tools: Vec<Tool<'a>> = theirs.iter().map(Tool::Theirs).chain(ours).collect();
    if let Some(Tool::Ours(last)) = tools.last_mut() {
        last.cache_control = cache;
    }
    tools
}

fn choice(choice: Option<&ToolChoice>, parallel: Option<bool>) -> Option<Value> {
    let (type_, name) = match choice {
        None if parallel.is_none() => return None,
        Some(ToolChoice::None) => return Some(json!({ "type": "none" })),
        Some(ToolChoice::Required) => ("any", None),
        Some(ToolChoice::Tool(name)) => ("tool", Some(("name", json!(name)))),
        _ => ("auto", None),
    };
    let disable = parallel.map(|parallel| ("disable_parallel_tool_use", json!(!parallel)));
    let fields = [("type", json!(type_))].into_iter();
    Some(fields.chain(name).chain(disable).collect())
}
