//! Conversion of a request to the agent's [`ChatRequest`].

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use concentric_core::{
    Author, CallId, ChatRequest, Context, Executor, Message, MessageId, OpenRound, Part, PartKind,
    Repair, Reply, RequestId, Resume, ResumePoint, Role, RunId, Str, StreamId, SystemSegment,
    ThreadId, ToolCallPart, ToolContent, ToolOutcome, ToolResult, ToolSpec, ToolSpecs, Transcript,
    Turn,
    store::{OpenInterrupts, Regenerate},
};
use http::request::Parts;
use serde_json::{Value, json};

use super::{
    AgUiContext, AgUiState, Assistant, Config, Content, Message as WireMessage, MessageKind,
    Metadata, Names, Offer, RunIds, RunInput, STATUS, Tool, ToolMessage, original, resume,
};
use crate::refused::Refused;

/// A validated run.
pub(crate) struct Start {
    pub(crate) request: ChatRequest,
    pub(crate) ids: RunIds,
    /// An empty offer, which is an extension of the context.
    pub(crate) offer: Offer,
}

/// A run whose messages are converted.
pub(super) struct Converted {
    /// Without the fields that were converted.
    input: RunInput,
    parts: Parts,
    ids: RunIds,
    tools: ToolSpecs,
    open_questions: OpenInterrupts,
    replies: Vec<Reply>,
    system: Vec<String>,
    messages: Vec<Message>,
    new_messages: Vec<Message>,
}

pub(super) fn convert(
    mut input: RunInput,
    parts: Parts,
    config: &Config,
) -> Result<Converted, Refused> {
    let environment = &config.settings.environment;
    let tools = tools(mem::take(&mut input.tools))?;
    // A client sends an empty `resume` if it may have missed the interrupts.
    let open_questions = match &input.resume {
        Some(entries) if entries.is_empty() => OpenInterrupts::Show,
        _ => OpenInterrupts::Withdraw,
    };
    let replies = resume::replies(input.resume.take());
    let run_id = input.run_id.take().unwrap_or_else(|| {
        let id = environment.ids().next("run_");
        id.as_str().to_owned()
    });
    let mut ids = RunIds::new(
        mem::take(&mut input.thread_id),
        run_id,
        input.parent_run_id.take(),
        &input.messages,
    );
    ids.continued = input.continued.take();
    let mut messages = mem::take(&mut input.messages);
    // Messages of sub-agents are not part of this agent's conversation.
    let theirs = messages.extract_if(.., |message| message.subagent_run_id.is_some());
    let theirs: Vec<WireMessage> = theirs.collect();
    ids.subagent_calls = subagent_calls(&theirs);
    let new_messages = match replies.is_empty() {
        true => Vec::new(),
        false => resume::take_new_messages(&mut messages),
    };
    ids.known = resume::restore(&mut messages, &theirs, &replies);
    let (system, messages) = self::messages(messages, &tools, true);
    let (_, new_messages) = self::messages(new_messages, &tools, false);
    Ok(Converted {
        input,
        parts,
        ids,
        tools,
        open_questions,
        replies,
        system,
        messages,
        new_messages,
    })
}

pub(super) fn start(run: Converted, config: &Config) -> Result<Start, Refused> {
    let Converted {
        input,
        parts,
        mut ids,
        tools,
        open_questions,
        replies,
        system,
        messages,
        new_messages,
    } = run;
    let (environment, policy) = (&config.settings.environment, &config.settings.policy);
    // `Repair::Close` completes an incomplete history instead of rejecting it.
    let (mut transcript, open) = Transcript::from_history(messages, Repair::Close)
        .map_err(|error| Refused::field("messages", &error.to_string()))?;

    let results = match &open {
        Some(open) => open
            .calls()
            .filter(|(call, outcome)| call.executor == Executor::Client && outcome.is_some())
            .count(),
        None => transcript
            .last()
            .and_then(Turn::as_round)
            .map_or(0, |round| clients(round.message()).count()),
    };
    policy.check_client_results(results)?;

    // The run waits again for missing results of client tools.
    let is_owed = |open: &OpenRound| {
        let mut waiting = open.waiting();
        waiting.any(|call| call.executor == Executor::Client)
    };
    let mut request = match open {
        Some(open) if !replies.is_empty() => {
            let mut request = ChatRequest::new(transcript);
            let resume = Resume::new(ResumePoint::UnverifiedHistory(open), replies);
            request.resume = Some(resume.with_messages(new_messages));
            request
        }
        // The history has no open round, so only a store can have the suspended run.
        None if !replies.is_empty() => {
            let mut request = ChatRequest::new(transcript);
            request.resume =
                Some(Resume::new(ResumePoint::InStore, replies).with_messages(new_messages));
            request
        }
        Some(open) if is_owed(&open) => {
            ChatRequest::resume_history(transcript, settle_own(open), Vec::new())
        }
        open => {
            if let Some(open) = open {
                transcript.push(open.close(|_| lost()));
            }
            ChatRequest::new(transcript)
        }
    };
    for text in system {
        request.system.push(SystemSegment::new(text));
    }
    ids.tools = tools.clone();
    request.tools = tools;

    let mut extensions = parts.extensions;
    let mut builder = Context::builder()
        .environment(environment.clone())
        .thread_id(ThreadId::new(ids.thread.as_str()))
        .run_id(RunId::new(ids.run.as_str()))
        .stream_id(StreamId::new(environment.ids().next("stream_")));
    if let Some(agent) = &config.agent {
        builder = builder.agent(agent.clone());
    }
    let request_id = parts.headers.get("x-request-id");
    if let Some(Ok(id)) = request_id.map(|id| id.to_str())
        && policy.is_id(id)
    {
        builder = builder.request_id(RequestId::new(id));
    }
    let mut context = builder.build();

    let state = input.state.unwrap_or_default();
    extensions.insert(AgUiState::new(state, config.state_limit, context.clone()));
    extensions.insert(AgUiContext {
        items: input.context.into(),
        forwarded_props: input.forwarded_props.map(Arc::new),
    });
    extensions.insert(open_questions);
    if input.is_regenerated {
        extensions.insert(Regenerate);
    }
    let offer = Offer::default();
    extensions.insert(offer.clone());
    if config.keep_headers {
        extensions.insert(parts.headers);
    }
    *context.extensions_mut() = extensions;
    context.set_stateless_caller();
    request.context = context;
    Ok(Start {
        request,
        ids,
        offer,
    })
}

/// The calls of a message that the client executes.
fn clients(message: &Message) -> impl Iterator<Item = &ToolCallPart> {
    let calls = message.tool_calls();
    calls.filter(|call| call.executor == Executor::Client)
}

/// The calls of sub-agents without a result, by run.
fn subagent_calls(messages: &[WireMessage]) -> HashMap<String, HashMap<CallId, Str>> {
    let answered = |message: &WireMessage| match &message.kind {
        MessageKind::Tool(result) => Some(result.tool_call_id.clone()),
        _ => None,
    };
    let answered: HashSet<String> = messages.iter().filter_map(answered).collect();
    let mut known: HashMap<String, HashMap<CallId, Str>> = HashMap::new();
    for message in messages {
        if let (MessageKind::Assistant(own), Some(run)) = (&message.kind, &message.subagent_run_id)
        {
            let calls = own.tool_calls.iter();
            for call in calls.filter(|call| !answered.contains(&call.id)) {
                // Both forms, since a number may have been appended to the id.
                for id in [Some(&*call.id), original(&call.id)].into_iter().flatten() {
                    let calls = known.entry(run.clone()).or_default();
                    calls.insert(CallId::new(id), call.id.as_str().into());
                }
            }
        }
    }
    known
}

/// Converts and validates the client's tools.
fn tools(tools: Vec<Tool>) -> Result<ToolSpecs, Refused> {
    let mut specs = ToolSpecs::default();
    let mut names = HashSet::new();
    for (at, tool) in tools.into_iter().enumerate() {
        if !names.insert(tool.name.clone()) {
            let problem = format!("two tools are named `{}`", tool.name);
            return Err(Refused::field(&format!("tools[{at}].name"), &problem));
        }
        let schema = match tool.parameters {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => {
                let field = format!("tools[{at}].parameters");
                return Err(Refused::field(
                    &field,
                    "expected a JSON Schema of an object",
                ));
            }
        };
        specs.push(Arc::new(ToolSpec::new(tool.name, tool.description, schema)));
    }
    Ok(specs)
}

/// Settles the calls of the server's tools, which the client cannot answer: their run has ended.
fn settle_own(mut open: OpenRound) -> OpenRound {
    let own = open
        .waiting()
        .filter(|call| call.executor != Executor::Client)
        .map(|call| ToolResult::new(call.id.clone(), call.name.clone(), lost()))
        .collect();
    // Waiting calls can always be settled.
    let _ = open.settle_all(own);
    open
}

fn lost() -> ToolOutcome {
    ToolOutcome::unknown("No result of this call was recorded.")
}

/// Converts messages. If they are the start of the history, the leading system texts are returned
/// separately.
fn messages(
    messages: Vec<WireMessage>,
    tools: &ToolSpecs,
    is_start: bool,
) -> (Vec<String>, Vec<Message>) {
    let mut system = Vec::new();
    let mut out = Vec::with_capacity(messages.len());
    let tools: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    // The tool names of the calls so far, for their results.
    let mut names: HashMap<String, Str> = HashMap::new();
    for message in messages {
        let (role, parts) = match message.kind {
            MessageKind::System { text, .. } if is_start && out.is_empty() => {
                system.push(text);
                continue;
            }
            MessageKind::System { text, .. } => (Role::System, vec![Part::text(text)]),
            MessageKind::User(content) => (Role::User, self::content(content, &Author::User)),
            MessageKind::Assistant(message) => {
                for call in &message.tool_calls {
                    names.insert(call.id.clone(), call.function.name.as_str().into());
                }
                (Role::Assistant, assistant(message, &tools))
            }
            MessageKind::Tool(message) => {
                let name = names.get(&message.tool_call_id).cloned();
                (Role::Tool, vec![result(message, name.unwrap_or_default())])
            }
            // A model cannot use reasoning without its provider's signature, and activities are
            // only for display.
            MessageKind::Aside => continue,
        };
        if !parts.is_empty() {
            out.push(Message::new(role, parts).with_id(MessageId::new(message.id)));
        }
    }
    (system, out)
}

fn assistant(message: Assistant, tools: &HashSet<&str>) -> Vec<Part> {
    let text = message.text.filter(|text| !text.is_empty());
    let mut parts: Vec<Part> = text.map(Part::text).into_iter().collect();
    for call in message.tool_calls {
        let executor = if tools.contains(call.function.name.as_str()) {
            Executor::Client
        } else {
            Executor::Loop
        };
        let call = ToolCallPart::new(
            CallId::new(call.id),
            call.function.name,
            call.function.arguments,
        );
        parts.push(Part::new(PartKind::ToolCall(call.executed_by(executor))));
    }
    parts
}

fn result(message: ToolMessage, name: Str) -> Part {
    let author = Author::Tool { name: name.clone() };
    let content = match message.content {
        Content::Text(text) => ToolContent::Text(text.into()),
        parts => ToolContent::Parts(content(parts, &author)),
    };
    let outcome = match (message.error, status(message.metadata.as_ref())) {
        (Some(error), _) if content.text().is_empty() => ToolOutcome::failed(error),
        (Some(_), _) | (_, Some("failed")) => with_content(ToolOutcome::failed(""), content),
        (_, Some("denied")) => with_content(ToolOutcome::denied(""), content),
        (_, Some("cancelled")) => with_content(ToolOutcome::cancelled(""), content),
        (_, Some("unknown")) => with_content(ToolOutcome::unknown(""), content),
        _ => ToolOutcome::done(content),
    };
    let result = ToolResult::new(CallId::new(message.tool_call_id), name, outcome);
    Part::new(PartKind::ToolResult(result))
}

/// The status that this endpoint attached to a result when it sent it, if any.
fn status(metadata: Option<&Metadata>) -> Option<&str> {
    metadata?.get(STATUS)?.as_str()
}

fn with_content(mut outcome: ToolOutcome, content: ToolContent) -> ToolOutcome {
    outcome.content = content;
    outcome
}

fn content(content: Content, author: &Author) -> Vec<Part> {
    let parts = match content {
        Content::Text(text) => vec![PartKind::Text(text.into())],
        Content::Parts(parts) => parts,
    };
    let parts = parts.into_iter();
    parts
        .map(|kind| Part::new(kind).by(author.clone()))
        .collect()
}

impl RunIds {
    pub(crate) fn new(
        thread: String,
        run: String,
        parent: Option<String>,
        messages: &[WireMessage],
    ) -> Self {
        let system = messages.iter().map_while(|message| match &message.kind {
            MessageKind::System { role, text } => {
                Some(json!({"id": message.id, "role": role, "content": text}))
            }
            _ => None,
        });
        let mut message_names = Names::default();
        let mut call_names = Names::default();
        for message in messages {
            message_names.take(&message.id);
            if let MessageKind::Assistant(message) = &message.kind {
                for call in &message.tool_calls {
                    call_names.take(&call.id);
                }
            }
        }
        Self {
            thread,
            run,
            parent,
            tools: ToolSpecs::default(),
            messages: message_names,
            calls: call_names,
            system: system.collect(),
            known: Vec::new(),
            subagent_calls: HashMap::new(),
            continued: None,
        }
    }
}
