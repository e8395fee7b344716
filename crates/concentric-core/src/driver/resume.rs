use crate::{
    request::ChatRequest,
    resume::{Resume, ResumePoint},
};
use concentric_proto::{
    Error, ErrorKind, Message, Phase, ResponseHead, RunUsage, Str, Usage,
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
            let usage = state.take_run_usage();
            let machine = Machine::restore(*state, rules);
            let context = &request.context;
            // Without a total, no model had recorded its tokens. Inside another loop's model call,
            // that loop stores the total.
            let usage = usage.or_else(|| {
                let used = machine.usage();
                let is_own = context.phase() == Phase::Run && used != Usage::default();
                is_own.then(|| {
                    let mut usage = RunUsage::default();
                    usage.record(&ResponseHead::default(), used);
                    usage
                })
            });
            if let Some(usage) = usage {
                context.resume_usage(usage);
            }
            Ok(machine)
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
