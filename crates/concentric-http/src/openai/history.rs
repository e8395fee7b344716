//! Conversion of the messages of a request, of both APIs.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use concentric_core::{
    Author, CallId, Executor, Message, OpenRound, Part, PartKind, Repair, Reply, Resume,
    ResumePoint, Role, Str, System, SystemSegment, ThreadId, ToolCallPart, ToolOutcome, ToolResult,
    ToolSpecs, Transcript, Turn,
};

use super::{
    approval::{Decision, is_about},
    content::Content,
    stored::Before,
};
use crate::{policy::ClientPolicy, refused::Refused};

/// A message of the history.
pub(super) enum Item {
    /// Instructions, with the role `system` or `developer`.
    System {
        role: &'static str,
        content: Content,
    },
    User(Content),
    Assistant(Assistant),
    Tool {
        call_id: Str,
        content: Content,
    },
    /// Reasoning, which a model cannot use without its provider's signature.
    Aside,
    /// A request for an approval, and its id.
    Question(Str),
    Decision(Decision),
}

/// The text and the calls of the model.
#[derive(Default)]
pub(super) struct Assistant {
    pub(super) content: Vec<PartKind>,
    pub(super) calls: Vec<Call>,
}

pub(super) struct Call {
    pub(super) id: Str,
    pub(super) name: Str,
    pub(super) arguments: Str,
}

/// The form in which an API sends the messages.
pub(super) struct Form {
    /// The field with the messages.
    pub(super) field: &'static str,
    /// The names of the fields of an assistant message's calls, and of the call of a result.
    pub(super) calls: &'static str,
    /// Whether each part of an answer is an item of its own.
    pub(super) is_split: bool,
}

/// The system text and the conversation of a request, and the ids of its calls.
pub(super) struct History {
    pub(super) system: System,
    pub(super) transcript: Transcript,
    /// The run that the approvals at the end of the messages resume, and its conversation.
    pub(super) resume: Option<(ThreadId, Resume)>,
    pub(super) calls: HashSet<Str>,
}

impl History {
    pub(super) fn new(
        items: Vec<Item>,
        tools: &ToolSpecs,
        policy: &ClientPolicy,
        form: &Form,
        before: Before,
    ) -> Result<Self, Refused> {
        policy.check_messages(form.field, items.len())?;
        let Before {
            history,
            mut system,
            open: mut messages,
            renamed,
        } = before;
        let stored = messages.len();
        messages.reserve(items.len());
        // The ids of calls in the conversation, by those that the client has.
        let renamed: HashMap<Str, Str> = renamed.into_iter().collect();
        // The tool names of the calls so far, for their results.
        let mut names: HashMap<Str, Str> = HashMap::new();
        let turns = history.rev().map(Turn::as_message);
        for call in turns.chain(&messages).flat_map(Message::tool_calls) {
            names.insert(call.id.as_str().into(), call.name.clone());
        }
        // The decisions since the last answer, and the number of messages before them.
        let (mut decisions, mut since) = (Vec::new(), stored);
        // Whether a request for an approval follows the last decision.
        let mut is_asked = false;
        for (at, item) in items.into_iter().enumerate() {
            let field = format_args!("{}[{at}]", form.field);
            check(&item, field, policy, form)?;
            let (role, parts) = match item {
                Item::System { content, .. } => {
                    let text = content.into_text().ok_or_else(|| {
                        let problem = "expected text only for this role";
                        Refused::field(&format!("{field}.content"), problem)
                    })?;
                    if messages.is_empty() && history.is_empty() {
                        system.push(SystemSegment::new(text));
                        continue;
                    }
                    (Role::System, vec![Part::text(text)])
                }
                Item::User(content) => {
                    let parts = content.into_parts().into_iter();
                    let parts = parts.map(|kind| Part::new(kind).by(Author::User));
                    (Role::User, parts.collect())
                }
                Item::Assistant(message) => {
                    decisions.clear();
                    since = messages.len() + 1;
                    for call in &message.calls {
                        names.insert(call.id.clone(), call.name.clone());
                    }
                    (Role::Assistant, assistant(message, tools))
                }
                Item::Tool { call_id, content } => {
                    let call_id = renamed.get(&call_id).cloned().unwrap_or(call_id);
                    let Some(name) = names.get(&call_id).cloned() else {
                        let problem = format!("no tool call has the id `{call_id}`");
                        return Err(Refused::field(&field.to_string(), &problem));
                    };
                    (Role::Tool, vec![result(call_id, name, content)])
                }
                Item::Aside => continue,
                Item::Question(id) => {
                    // After a message of the user, it is of another round; a repeated one is open again.
                    let later = messages.get(since..).unwrap_or_default();
                    match later.iter().any(|message| message.role == Role::User) {
                        true => decisions.clear(),
                        false => decisions.retain(|(_, reply)| !is_about(reply, &id)),
                    }
                    (since, is_asked) = (messages.len(), true);
                    continue;
                }
                Item::Decision(decision) => {
                    is_asked = false;
                    decisions.push(decision.reply(field)?);
                    continue;
                }
            };
            let len = messages.len();
            match messages.last_mut() {
                // The items of one answer.
                Some(last)
                    if form.is_split
                        && role == Role::Assistant
                        && last.role == role
                        && len > stored =>
                {
                    last.parts.extend(parts);
                }
                _ if parts.is_empty() => {}
                _ => messages.push(Message::new(role, parts)),
            }
        }
        if is_asked {
            decisions.clear();
        }
        // Items of one answer may have results in between, in any order.
        let repair = match form.is_split {
            true => Repair::Close,
            false => Repair::Refuse,
        };
        let accompanying = match decisions.is_empty() {
            true => Vec::new(),
            false => {
                let since = since.min(messages.len());
                let is_users = |message: &mut Message| message.role == Role::User;
                messages.extract_if(since.., is_users).collect()
            }
        };
        let (turns, open) = Transcript::from_history(messages, repair)
            .map_err(|error| Refused::field(form.field, &error.to_string()))?;
        let mut transcript = history;
        match transcript.is_empty() {
            true => transcript = turns,
            false => transcript.extend(turns.iter().cloned()),
        }
        let resume = match decisions.is_empty() {
            true => {
                if let Some(call) = open.as_ref().and_then(|open| open.waiting().next()) {
                    let problem = format!("tool call `{}` has no result", call.id);
                    return Err(Refused::field(form.field, &problem));
                }
                None
            }
            false => Some(resume(decisions, accompanying, open, policy, form)?),
        };
        Ok(Self {
            system,
            transcript,
            resume,
            calls: names.into_keys().collect(),
        })
    }
}

fn check(
    item: &Item,
    field: fmt::Arguments<'_>,
    policy: &ClientPolicy,
    form: &Form,
) -> Result<(), Refused> {
    let parts = |content: &Content| {
        policy.check_parts(|| format!("{field}.content"), "", content.parts().iter())
    };
    match item {
        Item::System { role, .. } => policy.check_system(|| format!("{field}.role"), role),
        Item::User(content) => parts(content),
        Item::Assistant(message) => {
            let calls = &message.calls;
            policy.check_calls(|| format!("{field}.{}", form.calls), calls.len())?;
            for call in calls {
                policy.check_id(|| format!("{field}.{}", form.calls), &call.id)?;
                policy.check_id(|| format!("{field}.{}", form.calls), &call.name)?;
            }
            policy.check_parts(|| format!("{field}.content"), "", message.content.iter())
        }
        Item::Tool { call_id, content } => {
            policy.check_id(|| format!("{field}.call_id"), call_id)?;
            parts(content)
        }
        Item::Aside => Ok(()),
        Item::Question(id) => policy.check_interrupt_id(|| format!("{field}.id"), id),
        Item::Decision(decision) => {
            policy.check_interrupt_id(|| format!("{field}.approval_request_id"), &decision.request)
        }
    }
}

/// The resumption of the run that waits for `decisions`, with the messages that came with them. A round with
/// results of the client is `open`.
fn resume(
    decisions: Vec<(ThreadId, Reply)>,
    messages: Vec<Message>,
    open: Option<OpenRound>,
    policy: &ClientPolicy,
    form: &Form,
) -> Result<(ThreadId, Resume), Refused> {
    policy.check_client_results(decisions.len())?;
    let (mut threads, replies): (Vec<ThreadId>, Vec<Reply>) = decisions.into_iter().unzip();
    threads.dedup();
    let (Some(thread), None) = (threads.pop(), threads.pop()) else {
        let problem = "the approval requests are of several conversations";
        return Err(Refused::field(form.field, problem));
    };
    let point = match open {
        Some(open) if !open.client_replies().is_empty() => ResumePoint::UnverifiedHistory(open),
        _ => ResumePoint::InStore,
    };
    Ok((thread, Resume::new(point, replies).with_messages(messages)))
}

fn assistant(message: Assistant, tools: &ToolSpecs) -> Vec<Part> {
    let content = message.content.into_iter().map(Part::new);
    let calls = message.calls.into_iter().map(|call| {
        let executor = match tools.get(&call.name) {
            Some(_) => Executor::Client,
            None => Executor::Loop,
        };
        let call = ToolCallPart::new(CallId::new(call.id), call.name, call.arguments);
        Part::new(PartKind::ToolCall(call.executed_by(executor)))
    });
    content.chain(calls).collect()
}

fn result(call_id: Str, name: Str, content: Content) -> Part {
    let author = Author::Tool { name: name.clone() };
    let content = content.into_tool_content(|kind| Part::new(kind).by(author.clone()));
    let result = ToolResult::new(CallId::new(call_id), name, ToolOutcome::done(content));
    Part::new(PartKind::ToolResult(result))
}
