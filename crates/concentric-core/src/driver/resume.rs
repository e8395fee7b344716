use crate::{
    request::ChatRequest,
    resume::{Resume, ResumePoint},
};
use concentric_proto::{
    Error, ErrorKind, Message, Phase, Str,
    machine::{Machine, RunLimits},
};
use std::sync::Arc;

/// Restores the machine of the run that `resumed` refers to, and applies the replies.
///
/// The values of the run's slots are put into the context of `request`. [`Agent`](crate::Agent)
/// does this itself; use this function to drive a custom loop, or to end a run without an agent.
///
/// # Errors
///
/// [`Conflict`](ErrorKind::Conflict): another attempt has already resumed the run, the run is over,
/// or no layer around this service stores runs. [`InvalidRequest`](ErrorKind::InvalidRequest) with
/// the code of the [`ReplyError`](crate::ReplyError): the replies do not match the run's
/// interrupts. [`InvalidRequest`](ErrorKind::InvalidRequest) with the code `unexpected_message`:
/// the run does not accept a message at this point.
pub fn resume(
    request: &mut ChatRequest,
    resumed: &Resume,
    rules: impl Into<Arc<RunLimits>>,
) -> Result<Machine, Error> {
    let (suspended, replies) = resumed
        .take()
        .ok_or_else(|| conflict("the run was already resumed"))?;
    let mut machine = restore(
        request,
        suspended,
        resumed.messages().to_vec(),
        rules.into(),
    )?;
    if machine.is_ended() {
        return Err(conflict("the run is over"));
    }
    let at = resumed.was_accepted_at();
    machine
        .reply(replies, at.unwrap_or_else(|| request.context.now()))
        .map_err(|error| {
            Error::new(ErrorKind::InvalidRequest, error.to_string())
                .with_code(error.code())
                .with_source(error)
                .with_phase(Phase::Run)
        })?;
    Ok(machine)
}

/// Restores a suspended run, and adds the messages that arrived with the replies.
fn restore(
    request: &mut ChatRequest,
    suspended: ResumePoint,
    messages: Vec<Message>,
    rules: Arc<RunLimits>,
) -> Result<Machine, Error> {
    let unexpected = |error: Error| error.with_phase(Phase::Run);
    match suspended {
        ResumePoint::State(mut state) => {
            state.push_messages(messages).map_err(unexpected)?;
            let slots = state.take_slots();
            if !slots.is_empty() {
                request.context.run_slots().resume(slots);
            }
            if let Some(usage) = state.take_run_usage() {
                request.context.resume_usage(usage);
            }
            Ok(Machine::restore(*state, rules))
        }
        ResumePoint::UnverifiedHistory(open) => {
            let transcript = std::mem::take(&mut request.transcript);
            let mut machine = Machine::claimed(transcript, open, &request.tools, rules);
            machine.push_messages(messages).map_err(unexpected)?;
            Ok(machine)
        }
        ResumePoint::InStore => Err(conflict(
            "there is no run to resume: no layer around the agent stores runs; add `SuspendLayer`",
        )),
    }
}

fn conflict(reason: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, Str::from_static(reason)).with_phase(Phase::Run)
}
