//! From a request's `resume`, and the end of its history, to what a run goes on with.
//!
//! The questions of a run, and the proofs that they were asked, name a call by its message, by its
//! place there and by its own id. A client has other names for some of it: ids that were in use
//! already were changed before it saw them, and some clients keep what several messages called in
//! one. So the end of the history is put back as it was, as far as the replies say how that is: what
//! they name wrongly nobody waits for, and no proof is for it.

use std::collections::{HashMap, HashSet};

use concentric_core::{CallId, InterruptId, Reply, ReplyStatus, Str};
use serde_json::Value;

use super::{
    AssistantMessage, Metadata, ResumeEntry, ResumeStatus, ToolCall,
    message::Message,
    stream::{KnownCall, original},
};

/// Where the payload of an answer, or its metadata, has the proof that the question was asked.
pub(super) const TOKEN: &str = "token";

/// Where the metadata of an answer of `@tanstack/ai-client` has what the interrupt's binding said.
const CONTINUATION: &str = "tanstack:interruptContinuation";

pub(super) fn replies(entries: Option<Vec<ResumeEntry>>) -> Vec<Reply> {
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
        // It held the proof, and nothing else.
        payload = None;
    }
    reply.payload = payload;
    match token {
        Some(Value::String(token)) => reply.with_token(token),
        _ => reply,
    }
}

/// The token in the metadata of an answer: by its own name, or as `@tanstack/ai-client` sends back
/// the payload of an interrupt.
fn token_of(metadata: &Metadata) -> Option<&Value> {
    let continued = || metadata.get(CONTINUATION)?.get("payload")?.get(TOKEN);
    metadata.get(TOKEN).or_else(continued)
}

/// Puts the last assistant's message back as it was made, and returns its calls. `theirs` are the
/// messages of sub-agents.
pub(super) fn restore(
    messages: &mut Vec<Message>,
    theirs: &[Message],
    replies: &[Reply],
) -> Vec<KnownCall> {
    let Some(at) = last_answer(messages) else {
        return Vec::new();
    };
    let mut questions = questions(replies);
    if !theirs.is_empty() {
        // What is asked about the call of a sub-agent says nothing of a call of the same id here.
        let ids = theirs.iter().map(Message::id);
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

/// The assistant's message that only results follow.
fn last_answer(messages: &[Message]) -> Option<usize> {
    let at = messages.iter().rposition(|message| !is_aside(message))?;
    matches!(messages.get(at), Some(Message::Assistant(_))).then_some(at)
}

fn is_aside(message: &Message) -> bool {
    matches!(
        message,
        Message::Tool(_) | Message::Reasoning(_) | Message::Activity(_)
    )
}

/// Text that followed a message's calls went out as a message of its own.
fn join_texts(messages: &mut Vec<Message>, mut at: usize) -> usize {
    // The last one first.
    let mut texts = Vec::new();
    while let Some(before) = text_of(messages, at) {
        texts.push(at);
        at = before;
    }
    let mut more: Option<String> = None;
    for text in texts.iter().rev() {
        if let Some(Message::Assistant(text)) = messages.get_mut(*text)
            && let Some(text) = text.content.take()
        {
            more.get_or_insert_default().push_str(&text);
        }
    }
    if let (Some(Message::Assistant(message)), Some(more)) = (messages.get_mut(at), more) {
        message.content.get_or_insert_default().push_str(&more);
    }
    let mut index = 0..;
    messages.retain(|_| texts.pop_if(|text| index.next() == Some(*text)).is_none());
    at
}

/// The message that the one at `at` is a text of.
fn text_of(messages: &[Message], at: usize) -> Option<usize> {
    let Some(Message::Assistant(text)) = messages.get(at) else {
        return None;
    };
    let name = original(&text.id)?;
    if !calls(text).is_empty() {
        return None;
    }
    let before = messages.get(..at)?.iter().rposition(|m| !is_aside(m))?;
    match messages.get(before) {
        Some(Message::Assistant(m)) if m.id == name || original(&m.id) == Some(name) => {
            Some(before)
        }
        _ => None,
    }
}

fn calls(message: &AssistantMessage) -> &[ToolCall] {
    message.tool_calls.as_deref().unwrap_or_default()
}

/// Gives the calls of the message at `at` the ids that they were made with.
fn rename_calls(messages: &mut [Message], at: usize, questions: &Questions<'_>) -> Vec<KnownCall> {
    let (earlier, rest) = messages.split_at_mut(at);
    let Some((Message::Assistant(message), results)) = rest.split_first_mut() else {
        return Vec::new();
    };
    let earlier: HashSet<&str> = earlier
        .iter()
        .flat_map(|message| match message {
            Message::Assistant(message) => calls(message),
            _ => &[],
        })
        .map(|call| call.id.as_str())
        .collect();
    let mut own: HashSet<String> = calls(message).iter().map(|call| call.id.clone()).collect();
    let answered: HashSet<&str> = results
        .iter()
        .filter_map(|message| match message {
            Message::Tool(result) => Some(result.tool_call_id.as_str()),
            _ => None,
        })
        .collect();

    let mut known = Vec::new();
    let mut renamed: HashMap<Str, String> = HashMap::new();
    for call in message.tool_calls.iter_mut().flatten() {
        let wire = Str::from(call.id.as_str());
        // Of several of one name, the first has the results.
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
        if let Message::Tool(result) = result
            && let Some(id) = renamed.get(result.tool_call_id.as_str())
        {
            result.tool_call_id.clone_from(id);
        }
    }
    known
}

/// Makes a message of its own of those calls of the message at `at` that were made by the one that
/// the replies name.
fn split(messages: &mut Vec<Message>, at: usize, questions: &Questions<'_>) {
    let Some(Message::Assistant(message)) = messages.get_mut(at) else {
        return;
    };
    let made_by = |(index, call): (usize, &ToolCall)| {
        let mut asked = questions.about(&call.id);
        asked.find_map(|(id, position)| Some((id.to_owned(), index.checked_sub(position)?)))
    };
    let Some((id, first)) = calls(message).iter().enumerate().find_map(made_by) else {
        return;
    };
    if first == 0 {
        message.id = id;
        return;
    }
    let own = message
        .tool_calls
        .as_mut()
        .map(|calls| calls.split_off(first));
    let mut message = AssistantMessage::new(id);
    message.tool_calls = own;
    messages.insert(at + 1, message.into());
}

/// The questions that are answered, as if each were the only one about its call: the id of another
/// has more behind it.
fn questions(replies: &[Reply]) -> Vec<&str> {
    let ids = replies.iter().map(|reply| reply.interrupt_id.as_str());
    let others = ids.clone().filter_map(|id| Some(id.rsplit_once('#')?.0));
    ids.clone().chain(others).collect()
}

/// Questions in the order of what they end with, each with its place among them: the end of an id is
/// the call that it is about.
struct Questions<'a>(Vec<(&'a str, usize)>);

impl<'a> Questions<'a> {
    fn new(ids: Vec<&'a str>) -> Self {
        let mut ids: Vec<_> = ids.into_iter().zip(0..).collect();
        ids.sort_by(|(a, _), (b, _)| a.bytes().rev().cmp(b.bytes().rev()));
        Self(ids)
    }

    /// Which message made `call`, and at which place, as each question about it has it.
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

/// Which message made the call that a question is about, and at which place, if it is of the id
/// `call`.
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
    fn the_token_is_taken_out_of_the_payload_or_the_metadata() {
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
        // What is no token is left to be complained about.
        let odd = entry(json!({"interruptId": "i", "status": "resolved", "payload": {"token": 7}}));
        assert_eq!(
            odd,
            Reply::resolve(InterruptId::new("i"), json!({"token": 7}))
        );
    }

    #[test]
    fn a_question_says_which_message_made_the_call() {
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
