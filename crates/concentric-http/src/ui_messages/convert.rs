//! Conversion of a request to the input of a run.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use concentric_core::{Media, PartKind};
use serde_json::{Value, json};

use super::{
    chunk::{Chunk, Data},
    input::{Call, CallResult, ChatInput, Role, UiMessage, UiPart},
    layer::Sdk,
};
use crate::{
    media_url::media,
    policy::ClientPolicy,
    refused::Refused,
    run::{
        Assistant, Content, Continued, FunctionCall, Message, MessageKind, Metadata, ResumeEntry,
        ResumeStatus, RunInput, STATUS, TOKEN, Tool, ToolCall, ToolMessage,
    },
    sse,
};

/// Checks a request against the policy.
pub(super) fn check(policy: &ClientPolicy, input: &ChatInput) -> Result<(), Refused> {
    policy.check_messages("messages", input.messages.len())?;
    policy.check_id(|| "id".to_owned(), &input.id)?;
    let decisions = decisions(&input.messages).count();
    policy.check_replies(input.resume.len().saturating_add(decisions))?;
    for (at, reply) in input.resume.iter().enumerate() {
        let field = || format!("resume[{at}].interruptId");
        policy.check_interrupt_id(field, &reply.interrupt_id)?;
    }
    if let Some(id) = &input.message_id {
        policy.check_id(|| "messageId".to_owned(), id)?;
    }
    for (at, message) in input.messages.iter().enumerate() {
        policy.check_id(|| format!("messages[{at}].id"), &message.id)?;
        policy.check_part_count(|| format!("messages[{at}].parts"), message.parts.len())?;
        match message.role {
            Role::System => policy.check_system(|| format!("messages[{at}].role"), "system")?,
            Role::User => {
                let parts: Vec<PartKind> = message.parts.iter().map(user_part).collect();
                policy.check_parts(|| format!("messages[{at}].parts"), ".url", parts.iter())?;
            }
            Role::Assistant => check_calls(policy, at, message)?,
        }
    }
    Ok(())
}

fn check_calls(policy: &ClientPolicy, at: usize, message: &UiMessage) -> Result<(), Refused> {
    let calls = message.parts.iter().filter_map(UiPart::call).count();
    policy.check_calls(|| format!("messages[{at}].parts"), calls)?;
    for (part_at, part) in message.parts.iter().enumerate() {
        let Some(call) = part.call() else {
            continue;
        };
        let field = |name| format!("messages[{at}].parts[{part_at}].{name}");
        policy.check_id(|| field("toolCallId"), call.id)?;
        policy.check_id(|| field("toolName"), call.name)?;
        if let Some(approval) = &part.approval {
            policy.check_interrupt_id(|| field("approval.id"), &approval.id)?;
        }
    }
    Ok(())
}

/// The calls in the last message, if it is an answer, which the client has decided about.
fn decisions(messages: &[UiMessage]) -> impl Iterator<Item = Call<'_>> {
    let last = answer(messages).into_iter();
    last.flat_map(|message| message.parts.iter().filter_map(UiPart::call))
        .filter(|call| call.decision().is_some())
}

/// The last message, if it is an answer.
fn answer(messages: &[UiMessage]) -> Option<&UiMessage> {
    messages
        .last()
        .filter(|message| message.role == Role::Assistant)
}

/// Converts a request of a client of this version, which executes `tools`.
pub(super) fn convert(input: ChatInput, tools: Vec<Tool>, sdk: Sdk) -> RunInput {
    let is_regenerated = input.is_regenerated();
    let mut resume = input.resume;
    resume.extend(decisions(&input.messages).filter_map(|call| reply(&call)));
    let continued = answer(&input.messages).map(|message| continued(message, sdk));
    let mut messages = Vec::with_capacity(input.messages.len());
    for message in input.messages {
        match message.role {
            Role::System => {
                let text = text(&message.parts);
                let role = "system";
                push(
                    message.id,
                    MessageKind::System { role, text },
                    &mut messages,
                );
            }
            Role::User => {
                let content = user_content(&message.parts);
                push(message.id, MessageKind::User(content), &mut messages);
            }
            Role::Assistant => push_answer(&message, &mut messages),
        }
    }
    RunInput {
        thread_id: input.id,
        messages,
        tools,
        forwarded_props: (!input.others.is_empty()).then(|| input.others.into()),
        resume: (!resume.is_empty()).then_some(resume),
        continued,
        is_regenerated,
        ..RunInput::default()
    }
}

fn push(id: String, kind: MessageKind, messages: &mut Vec<Message>) {
    messages.push(Message {
        id,
        subagent_run_id: None,
        kind,
    });
}

fn reply(call: &Call<'_>) -> Option<ResumeEntry> {
    let decision = call.decision()?;
    let mut payload = Metadata::new();
    // Anything but an approval is a denial.
    let approved = decision.approved == Some(true);
    payload.insert("approved".to_owned(), approved.into());
    if let Some(reason) = decision.reason.as_deref().filter(|_| !approved) {
        payload.insert("reason".to_owned(), reason.into());
    }
    let token = decision.signature.as_deref();
    let metadata = token.map(|token| Metadata::from_iter([(TOKEN.to_owned(), token.into())]));
    Some(ResumeEntry {
        interrupt_id: decision.id.clone(),
        status: ResumeStatus::Resolved,
        payload: Some(payload.into()),
        metadata,
    })
}

fn text(parts: &[UiPart]) -> String {
    let texts = parts.iter().filter(|part| part.r#type == "text");
    texts.filter_map(|part| part.text.as_deref()).collect()
}

/// The content of a message by the user. Other parts than text and files are not for the model.
fn user_content(parts: &[UiPart]) -> Content {
    let is_shown = |part: &&UiPart| matches!(part.r#type.as_str(), "text" | "file");
    if parts.iter().all(|part| part.r#type == "text") {
        return Content::Text(text(parts));
    }
    Content::Parts(parts.iter().filter(is_shown).map(user_part).collect())
}

fn user_part(part: &UiPart) -> PartKind {
    let Some(url) = part.url.as_deref().filter(|_| part.r#type == "file") else {
        return PartKind::Text(part.text.as_deref().unwrap_or_default().into());
    };
    let mut media: Media = media(url);
    if let Some(media_type) = part.media_type.as_deref() {
        media.media_type = Some(media_type.into());
    }
    media.name = part.filename.as_deref().map(Into::into);
    let kind = media.media_type.as_ref().map(|kind| kind.as_str());
    match kind.and_then(|kind| kind.split('/').next()) {
        Some("image") => PartKind::Image(media),
        Some("audio") => PartKind::Audio(media),
        _ => PartKind::File(media),
    }
}

/// Appends the messages of an answer: one per step, each with the results of its calls.
fn push_answer(message: &UiMessage, messages: &mut Vec<Message>) {
    let steps = message.parts.split(|part| part.r#type == "step-start");
    let mut count = 0;
    for parts in steps {
        let calls: Vec<Call<'_>> = parts.iter().filter_map(UiPart::call).collect();
        let text = text(parts);
        if calls.is_empty() && text.is_empty() {
            continue;
        }
        count += 1;
        let id = match count {
            1 => message.id.clone(),
            step => format!("{}~{step}", message.id),
        };
        let answer = Assistant {
            text: (!text.is_empty()).then_some(text),
            tool_calls: calls.iter().map(tool_call).collect(),
        };
        push(id, MessageKind::Assistant(answer), messages);
        for call in &calls {
            if let Some(result) = call.result() {
                let id = format!("{}~{}", message.id, call.id);
                push(id, MessageKind::Tool(tool_result(call, &result)), messages);
            }
        }
    }
}

fn tool_call(call: &Call<'_>) -> ToolCall {
    ToolCall::new(
        call.id.to_owned(),
        FunctionCall {
            name: call.name.to_owned(),
            arguments: call.arguments(),
        },
    )
}

fn tool_result(call: &Call<'_>, result: &CallResult<'_>) -> ToolMessage {
    let (text, status) = match result {
        CallResult::Output(Value::String(text)) => (text.clone(), None),
        CallResult::Output(output) => (output.to_string(), None),
        CallResult::Error(text) => ((*text).to_owned(), Some("failed")),
        CallResult::Denied(reason) => ((*reason).to_owned(), Some("denied")),
    };
    ToolMessage {
        tool_call_id: call.id.to_owned(),
        content: Content::Text(text),
        error: None,
        metadata: status.map(|it| Metadata::from_iter([(STATUS.to_owned(), it.into())])),
    }
}

/// The message that the answer continues.
fn continued(message: &UiMessage, sdk: Sdk) -> Continued {
    let calls = message.parts.iter().filter_map(UiPart::call);
    let calls = calls.map(|call| (call.id.to_owned(), call.part.approval.is_some()));
    let calls: HashMap<String, bool> = calls.collect();
    Continued {
        id: message.id.clone(),
        calls,
        frames: frames(message, sdk),
    }
}

/// The longest id of a reasoning part that its chunks repeat, in bytes.
const LONGEST: usize = 256;

/// The chunks that create a message, for a client that replays the whole answer.
fn frames(message: &UiMessage, sdk: Sdk) -> Bytes {
    let mut out = BytesMut::new();
    if let Some(message_metadata) = &message.metadata {
        sse::event(&Chunk::MessageMetadata { message_metadata }, &mut out);
    }
    for (at, part) in message.parts.iter().enumerate() {
        // The chunks repeat the id, so it is short: a part may be small, and there may be many.
        write_part(part, &at.to_string(), sdk, &mut out);
    }
    out.freeze()
}

fn write_part(part: &UiPart, id: &str, sdk: Sdk, out: &mut BytesMut) {
    let text = part.text.as_deref().unwrap_or_default();
    let mut write = |chunk: &Chunk<'_>| sse::event(chunk, out);
    match part.r#type.as_str() {
        "step-start" => write(&Chunk::StartStep),
        "text" => {
            write(&Chunk::TextStart { id });
            write(&Chunk::TextDelta { id, delta: text });
            write(&Chunk::TextEnd { id });
        }
        "reasoning" => {
            // Part of the message, unlike the id of a text.
            let own = part.id.as_deref().filter(|own| own.len() <= LONGEST);
            let id = own.unwrap_or(id);
            write(&Chunk::ReasoningStart { id });
            write(&Chunk::ReasoningDelta { id, delta: text });
            write(&Chunk::ReasoningEnd { id });
        }
        "file" => {
            if let (Some(url), Some(media_type)) = (&part.url, &part.media_type) {
                write(&Chunk::File { url, media_type });
            }
        }
        "source-url" => {
            if let (Some(source_id), Some(url)) = (&part.source_id, &part.url) {
                let title = part.title.as_deref();
                write(&Chunk::SourceUrl {
                    source_id,
                    url,
                    title,
                });
            }
        }
        "source-document" => {
            if let (Some(source_id), Some(media_type), Some(title)) =
                (&part.source_id, &part.media_type, &part.title)
            {
                write(&Chunk::SourceDocument {
                    source_id,
                    media_type,
                    title,
                    filename: part.filename.as_deref(),
                });
            }
        }
        of if of.starts_with("data-") => {
            let data = part.data.as_ref().unwrap_or(&Value::Null);
            let id = part.id.as_deref();
            sse::event(&Data::new(of, id, data, false), out);
        }
        _ => {
            if let Some(call) = part.call() {
                write_call(&call, sdk, out);
            }
        }
    }
}

fn write_call(call: &Call<'_>, sdk: Sdk, out: &mut BytesMut) {
    let part = call.part;
    let dynamic = part.r#type == "dynamic-tool";
    let empty = json!({});
    let input = part.input.as_ref().unwrap_or(&empty);
    let tool_call_id = call.id;
    let mut write = |chunk: &Chunk<'_>| sse::event(chunk, out);
    write(&Chunk::ToolInputAvailable {
        tool_call_id,
        tool_name: call.name,
        input,
        dynamic,
        provider_executed: part.provider_executed == Some(true),
    });
    if let Some(approval) = &part.approval {
        write(&Chunk::ToolApprovalRequest {
            approval_id: &approval.id,
            tool_call_id,
            approval_descriptor: approval.descriptor.as_ref(),
            reason: approval.request_reason.as_deref(),
            signature: approval.signature.as_deref(),
        });
        // A client would ask its user again.
        if let (Sdk::V7, Some(approved)) = (sdk, approval.approved) {
            write(&Chunk::ToolApprovalResponse {
                approval_id: &approval.id,
                approved,
                reason: approval.reason.as_deref(),
            });
        }
    }
    match call.result() {
        Some(CallResult::Output(output)) => write(&Chunk::ToolOutputAvailable {
            tool_call_id,
            output,
            preliminary: false,
        }),
        Some(CallResult::Error(error_text)) => write(&Chunk::ToolOutputError {
            tool_call_id,
            error_text,
        }),
        Some(CallResult::Denied(_)) => write(&Chunk::ToolOutputDenied { tool_call_id }),
        None => {}
    }
}
