//! Conversion of a request's `resume` and the end of its history to the replies and the open round
//! of a resumed run.
//!
//! Interrupts and their tokens identify a call by its message, its position there and its own id.
//! The client's history may differ: ids that were already in use were changed before they were
//! sent, and some clients merge the calls of several messages into one. So the end of the history
//! is restored from the ids of the replies. A wrong id does no harm, since no interrupt and no
//! token matches it.

use std::collections::{HashMap, HashSet};

use concentric_core::{CallId, InterruptId, Reply, ReplyStatus, Str};
use serde_json::Value;

use super::{
    Assistant, KnownCall, Message, MessageKind, Metadata, ResumeEntry, ResumeStatus, ToolCall,
    original,
};

/// The key of the approval token in the payload or the metadata of a resume entry.
pub(crate) const TOKEN: &str = "token";

/// The key under which `@tanstack/ai-client` returns the data of the interrupt's binding, in the
/// metadata of a resume entry.
const CONTINUATION: &str = "tanstack:interruptContinuation";

pub(crate) fn replies(entries: Option<Vec<ResumeEntry>>) -> Vec<Reply> {
    entries.into_iter().flatten().map(reply).collect()
}

fn reply(entry: ResumeEntry) -> Reply {
    let ResumeEntry {
        interrupt_id,
        status,
        mut payload,
        metadata,
    } = entry;
    let token = match &mut payload {
        Some(Value::Object(fields)) if fields.get(TOKEN).is_some_and(Value::is_string) => {
            fields.remove(TOKEN)
        }
        _ => metadata.as_ref().and_then(token_of).cloned(),
    };
    let mut reply = Reply::cancel(InterruptId::new(interrupt_id));
    if status == ResumeStatus::Resolved {
        reply.status = ReplyStatus::Resolved;
    } else if payload
        .as_ref()
        .is_some_and(|p| p.as_object().is_some_and(|p| p.is_empty()))
    {
        // It contained only the token.
        payload = None;
    }
    reply.payload = payload;
    match token {
        Some(Value::String(token)) => reply.with_token(token),
        _ => reply,
    }
}

/// The token in the metadata of a resume entry: under its own key, or in the interrupt payload that
/// `@tanstack/ai-client` returns.
fn token_of(metadata: &Metadata) -> Option<&Value> {
    let continued = || metadata.get(CONTINUATION)?.get("payload")?.get(TOKEN);
    metadata.get(TOKEN).or_else(continued)
}

/// Restores the last assistant message to its original form, and returns its calls. `theirs` are
/// the messages of sub-agents.
pub(crate) fn restore(
    messages: &mut Vec<Message>,
    theirs: &[Message],
    replies: &[Reply],
) -> Vec<KnownCall> {
    let Some(at) = last_answer(messages) else {
        return Vec::new();
    };
    let mut questions = questions(replies);
    if !theirs.is_empty() {
        // An interrupt about a sub-agent's call must not match a call of the same id here.
        let ids = theirs.iter().map(|message| message.id.as_str());
        let theirs: HashSet<&str> = ids
            .flat_map(|id| [id, original(id).unwrap_or(id)])
            .collect();
        questions.retain(|id| {
            !id.split_once('/')
                .is_some_and(|(id, _)| theirs.contains(id))
        });
    }
    let questions = Questions::new(questions);
    let at = join_texts(messages, at);
    let known = rename_calls(messages, at, &questions);
    split(messages, at, &questions);
    known
}

/// Removes and returns the messages of the user and the application after the last assistant
/// message, which accompany the replies. Without an assistant message, only the user's messages.
pub(crate) fn take_new_messages(messages: &mut Vec<Message>) -> Vec<Message> {
    let last = messages
        .iter()
        .rposition(|message| matches!(message.kind, MessageKind::Assistant(_)));
    let removed = messages.extract_if(last.unwrap_or_default().., |message| match message.kind {
        MessageKind::User(_) => true,
        MessageKind::System { .. } => last.is_some(),
        _ => false,
    });
    removed.collect()
}

/// The index of the last assistant message, if only results follow it.
fn last_answer(messages: &[Message]) -> Option<usize> {
    let at = messages.iter().rposition(|message| !is_aside(message))?;
    answer(messages.get(at)?).map(|_| at)
}

fn is_aside(message: &Message) -> bool {
    matches!(message.kind, MessageKind::Tool(_) | MessageKind::Aside)
}

fn answer(message: &Message) -> Option<&Assistant> {
    match &message.kind {
        MessageKind::Assistant(answer) => Some(answer),
        _ => None,
    }
}

fn answer_mut(message: &mut Message) -> Option<&mut Assistant> {
    match &mut message.kind {
        MessageKind::Assistant(answer) => Some(answer),
        _ => None,
    }
}

/// Joins texts after a message's calls, which were sent as separate messages, with that message.
fn join_texts(messages: &mut Vec<Message>, mut at: usize) -> usize {
    // In reverse order.
    let mut texts = Vec::new();
    while let Some(before) = text_of(messages, at) {
        texts.push(at);
        at = before;
    }
    let mut more: Option<String> = None;
    for text in texts.iter().rev() {
        if let Some(text) = messages.get_mut(*text).and_then(answer_mut)
            && let Some(text) = text.text.take()
        {
            more.get_or_insert_default().push_str(&text);
        }
    }
    if let (Some(message), Some(more)) = (messages.get_mut(at).and_then(answer_mut), more) {
        message.text.get_or_insert_default().push_str(&more);
    }
    let mut index = 0..;
    messages.retain(|_| texts.pop_if(|text| index.next() == Some(*text)).is_none());
    at
}

/// The index of the message that the text message at `at` was split from.
fn text_of(messages: &[Message], at: usize) -> Option<usize> {
    let text = messages.get(at)?;
    let name = original(&text.id)?;
    if !answer(text)?.tool_calls.is_empty() {
        return None;
    }
    let before = messages.get(..at)?.iter().rposition(|m| !is_aside(m))?;
    let message = messages.get(before)?;
    answer(message)?;
    (message.id == name || original(&message.id) == Some(name)).then_some(before)
}

/// Restores the original ids of the calls of the message at `at`.
fn rename_calls(messages: &mut [Message], at: usize, questions: &Questions<'_>) -> Vec<KnownCall> {
    let (earlier, rest) = messages.split_at_mut(at);
    let Some((message, results)) = rest.split_first_mut() else {
        return Vec::new();
    };
    let Some(message) = answer_mut(message) else {
        return Vec::new();
    };
    let earlier = earlier.iter().filter_map(answer);
    let earlier: HashSet<&str> = earlier
        .flat_map(|message| &message.tool_calls)
        .map(|call| call.id.as_str())
        .collect();
    let calls = message.tool_calls.iter();
    let mut own: HashSet<String> = calls.map(|call| call.id.clone()).collect();
    let answered: HashSet<&str> = results
        .iter()
        .filter_map(|message| match &message.kind {
            MessageKind::Tool(result) => Some(result.tool_call_id.as_str()),
            _ => None,
        })
        .collect();

    let mut known = Vec::new();
    let mut renamed: HashMap<Str, String> = HashMap::new();
    for call in &mut message.tool_calls {
        let wire = Str::from(call.id.as_str());
        // Of several calls with the same id, the results belong to the first.
        let answered = answered.contains(wire.as_str()) && !renamed.contains_key(&wire);
        if let Some(name) = original(&wire)
            && (earlier.contains(name) || questions.about(name).next().is_some())
            && own.insert(name.to_owned())
        {
            call.id = name.to_owned();
            renamed.insert(wire.clone(), name.to_owned());
        }
        known.push(KnownCall {
            id: CallId::new(call.id.as_str()),
            wire,
            answered,
        });
    }
    for result in results {
        if let MessageKind::Tool(result) = &mut result.kind
            && let Some(id) = renamed.get(result.tool_call_id.as_str())
        {
            result.tool_call_id.clone_from(id);
        }
    }
    known
}

/// Splits the message at `at` so that the calls of the message that the replies name are in a
/// message of their own.
fn split(messages: &mut Vec<Message>, at: usize, questions: &Questions<'_>) {
    let Some(message) = messages.get_mut(at) else {
        return;
    };
    let MessageKind::Assistant(answer) = &mut message.kind else {
        return;
    };
    let made_by = |(index, call): (usize, &ToolCall)| {
        let mut asked = questions.about(&call.id);
        asked.find_map(|(id, position)| Some((id.to_owned(), index.checked_sub(position)?)))
    };
    let Some((id, first)) = answer.tool_calls.iter().enumerate().find_map(made_by) else {
        return;
    };
    if first == 0 {
        message.id = id;
        return;
    }
    let own = Assistant {
        text: None,
        tool_calls: answer.tool_calls.split_off(first),
    };
    let own = Message {
        id,
        subagent_run_id: None,
        kind: MessageKind::Assistant(own),
    };
    messages.insert(at + 1, own);
}

/// The ids of the answered interrupts, with and without the suffix that distinguishes several
/// interrupts about one call.
fn questions(replies: &[Reply]) -> Vec<&str> {
    let ids = replies.iter().map(|reply| reply.interrupt_id.as_str());
    let others = ids.clone().filter_map(|id| Some(id.rsplit_once('#')?.0));
    ids.clone().chain(others).collect()
}

/// Interrupt ids sorted by their reversed bytes, each with its original position. An interrupt id
/// ends with the id of its call, so the sorted order allows a search by call.
struct Questions<'a>(Vec<(&'a str, usize)>);

impl<'a> Questions<'a> {
    fn new(ids: Vec<&'a str>) -> Self {
        let mut ids: Vec<_> = ids.into_iter().zip(0..).collect();
        ids.sort_by(|(a, _), (b, _)| a.bytes().rev().cmp(b.bytes().rev()));
        Self(ids)
    }

    /// The message that made `call` and the position there, according to each interrupt about it.
    fn about(&self, call: &str) -> impl Iterator<Item = (&'a str, usize)> + use<'a> {
        let end = || call.bytes().rev().chain([b'/']);
        let first = self.0.partition_point(|(id, _)| id.bytes().rev().lt(end()));
        let about = self.0.get(first..).unwrap_or_default().iter();
        let about = about.take_while(|(id, _)| end().zip(id.bytes().rev()).all(|(a, b)| a == b));
        let mut found: Vec<_> = about
            .filter_map(|(id, place)| Some((*place, asked(id, call)?)))
            .collect();
        found.sort_unstable_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, made_by)| made_by)
    }
}

/// The message and position of the call in an interrupt id, if the id of the call is `call`.
fn asked<'a>(question: &'a str, call: &str) -> Option<(&'a str, usize)> {
    let made_by = question.strip_suffix(call)?.strip_suffix('/')?;
    let (message, position) = made_by.rsplit_once('/')?;
    Some((message, position.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(value: Value) -> Reply {
        reply(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_token_is_removed_from_the_payload_or_the_metadata() {
        let of_payload = entry(json!({"interruptId": "i", "status": "resolved",
            "payload": {"approved": true, "token": "a"}, "metadata": {"token": "b"}}));
        assert_eq!(
            of_payload,
            Reply::approve(InterruptId::new("i")).with_token("a")
        );
        let of_metadata = entry(json!({"interruptId": "i", "status": "resolved",
            "payload": {"approved": true}, "metadata": {"token": "b"}}));
        assert_eq!(
            of_metadata,
            Reply::approve(InterruptId::new("i")).with_token("b")
        );
        let cancelled = entry(json!({"interruptId": "i", "status": "cancelled",
            "payload": {"token": "a"}}));
        assert_eq!(
            cancelled,
            Reply::cancel(InterruptId::new("i")).with_token("a")
        );
        // An invalid token stays in the payload, which is then rejected.
        let odd = entry(json!({"interruptId": "i", "status": "resolved", "payload": {"token": 7}}));
        assert_eq!(
            odd,
            Reply::resolve(InterruptId::new("i"), json!({"token": 7}))
        );
    }

    #[test]
    fn an_interrupt_id_identifies_the_message_of_its_call() {
        let of = |id: &str, call: &str| {
            let replies = [Reply::approve(InterruptId::new(id))];
            let questions = Questions::new(questions(&replies));
            let mut found = questions.about(call);
            found.next().map(|(message, at)| (message.to_owned(), at))
        };
        assert_eq!(of("m/0/c", "c"), Some(("m".to_owned(), 0)));
        assert_eq!(of("m/1/c#changed", "c"), Some(("m".to_owned(), 1)));
        assert_eq!(of("a/b/2/x/c", "x/c"), Some(("a/b".to_owned(), 2)));
        assert_eq!(of("m/0/x/", "x/"), Some(("m".to_owned(), 0)));
        assert_eq!(of("m/0/", ""), Some(("m".to_owned(), 0)));
        assert_eq!(of("m/0/c1", "c"), None);
        assert_eq!(of("m/x/c", "c"), None);
        assert_eq!(of("", "c"), None);
    }
}
