//! Input that a server of the revision 2026-07-28 requires to continue a call.

use crate::{elicit, offers, result, supervisor::Server};
use concentric_core::{Error, InterruptId, Suspension, ToolCall, ToolOutcome};
use rmcp::model::{InputRequest, InputRequiredResult, InputResponses};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The questions of one round.
const MAX_QUESTIONS: usize = 16;

/// The effect of a round of questions.
pub(crate) enum Input {
    /// The application has answered all of them: the call is sent again, with the state of the server.
    Answered(InputResponses, Option<String>),
    /// The end of the call in this process.
    End(Result<ToolOutcome, Error>),
}

/// Answers the questions that the application can answer, and suspends the call for the others.
pub(crate) async fn provide(
    server: &Server,
    call: &ToolCall,
    required: InputRequiredResult,
    rounds: u64,
) -> Input {
    let (name, config) = (server.config.name.as_str(), &server.config);
    let failed = |why: &str| Input::End(Ok(result::failed(name, why)));
    if rounds >= u64::from(config.limits.max_input_rounds) {
        return failed("it requires input too often.");
    }
    let opaque = required.request_state;
    let is_long = |state: &String| state.len() > config.limits.max_state_bytes;
    if opaque.as_ref().is_some_and(is_long) {
        return failed("its state is too large.");
    }
    let questions = required.input_requests.unwrap_or_default();
    if questions.is_empty() || questions.len() > MAX_QUESTIONS {
        return failed("it requires no input, or too much.");
    }
    let (mut interrupts, mut keys) = (Vec::new(), BTreeMap::new());
    let (mut samples, mut responses) = (Vec::new(), InputResponses::new());
    for (at, (key, question)) in questions.into_iter().enumerate() {
        let interrupt = match (question, &config.sampling) {
            (InputRequest::Elicitation(question), _) => {
                let id = interrupt_id(call, rounds, at);
                elicit::interrupt(name, id, &question.params)
            }
            (InputRequest::ListRoots(_), _) => {
                if let Some(roots) = offers::roots(config) {
                    responses.insert(key, serde_json::to_value(roots).unwrap_or_default());
                    continue;
                }
                None
            }
            (InputRequest::CreateMessage(question), Some(model)) => {
                samples.push((key, question.params, model.clone()));
                continue;
            }
            _ => None,
        };
        let Some(interrupt) = interrupt else {
            return failed("it requires input of a kind that is not supported.");
        };
        keys.insert(interrupt.id.as_str().to_owned(), key);
        interrupts.push(interrupt.about(call.id().clone()));
    }
    if samples.len() > config.limits.max_samples as usize {
        return failed("it requests too many answers of the model.");
    }
    // Only once the whole round is known to be valid.
    for (key, params, model) in samples {
        match offers::sample(config, model, params, &call.context).await {
            Ok(answer) => {
                responses.insert(key, serde_json::to_value(answer).unwrap_or_default());
            }
            Err(why) => return failed(&format!("its request for the model failed: {why}.")),
        }
    }
    if interrupts.is_empty() {
        return Input::Answered(responses, opaque);
    }
    let state: Value = json!({
        "state": opaque, "questions": keys, "responses": responses, "rounds": rounds + 1,
    });
    let suspension = Suspension::new(interrupts).together().with_state(state);
    Input::End(Err(Error::suspended(suspension)))
}

fn interrupt_id(call: &ToolCall, rounds: u64, at: usize) -> InterruptId {
    InterruptId::new(match call.context.interrupt_id() {
        Some(id) => format!("{}/mcp-{rounds}-{at}", id.as_str()),
        None => call.context.new_id("elicitation_").to_string(),
    })
}
