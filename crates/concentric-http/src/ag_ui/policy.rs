//! The limits on the input of a run.

use crate::{
    policy::ClientPolicy,
    refused::Refused,
    run::{Content, Message, MessageKind, RunInput},
};

pub(super) fn check(policy: &ClientPolicy, input: &RunInput) -> Result<(), Refused> {
    policy.check_messages("messages", input.messages.len())?;
    policy.check_tools(input.tools.len())?;
    policy.check_context(input.context.len())?;
    let resume = input.resume.as_deref().unwrap_or_default();
    policy.check_replies(resume.len())?;

    policy.check_id(|| "threadId".to_owned(), &input.thread_id)?;
    for (field, id) in [
        ("runId", &input.run_id),
        ("parentRunId", &input.parent_run_id),
    ] {
        if let Some(id) = id {
            policy.check_id(|| field.to_owned(), id)?;
        }
    }
    for (at, reply) in resume.iter().enumerate() {
        let field = || format!("resume[{at}].interruptId");
        policy.check_interrupt_id(field, &reply.interrupt_id)?;
    }
    for (at, tool) in input.tools.iter().enumerate() {
        let (field, schema) = (format!("tools[{at}]"), tool.parameters.as_ref());
        policy.check_tool(&field, &tool.name, &tool.description, schema)?;
    }
    for (at, message) in input.messages.iter().enumerate() {
        check_message(policy, at, message)?;
    }
    Ok(())
}

fn check_message(policy: &ClientPolicy, at: usize, message: &Message) -> Result<(), Refused> {
    policy.check_id(|| format!("messages[{at}].id"), &message.id)?;
    if let Some(id) = &message.subagent_run_id {
        policy.check_id(|| format!("messages[{at}].subagentRunId"), id)?;
    }
    match &message.kind {
        MessageKind::System { role, .. } => {
            policy.check_system(|| format!("messages[{at}].role"), role)
        }
        MessageKind::Assistant(message) => {
            let calls = &message.tool_calls;
            policy.check_calls(|| format!("messages[{at}].toolCalls"), calls.len())?;
            for (call_at, call) in calls.iter().enumerate() {
                let field = |name| format!("messages[{at}].toolCalls[{call_at}].{name}");
                policy.check_id(|| field("id"), &call.id)?;
                policy.check_id(|| field("function.name"), &call.function.name)?;
            }
            Ok(())
        }
        MessageKind::User(content) => check_content(policy, at, content),
        MessageKind::Tool(message) => {
            let field = || format!("messages[{at}].toolCallId");
            policy.check_id(field, &message.tool_call_id)?;
            check_content(policy, at, &message.content)
        }
        MessageKind::Aside => Ok(()),
    }
}

fn check_content(policy: &ClientPolicy, at: usize, content: &Content) -> Result<(), Refused> {
    match content {
        Content::Text(_) => Ok(()),
        Content::Parts(parts) => policy.check_parts(
            || format!("messages[{at}].content"),
            ".source",
            parts.iter(),
        ),
    }
}
