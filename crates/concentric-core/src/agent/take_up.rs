use crate::{
    request::ChatRequest,
    resume::{Resume, Suspended},
};
use concentric_proto::{
    Error, ErrorKind, Phase, Str,
    machine::{Machine, Rules},
};
use std::sync::Arc;

/// Takes the run that `resume` speaks of, and the replies to it: its machine, with the values of its
/// slots put into the context of `request`.
///
/// For who drives a loop of their own, or ends a run in an agent's place; an agent does it itself.
///
/// # Errors
///
/// [`Conflict`](ErrorKind::Conflict): another attempt has taken it, it is over, or nobody around this
/// place keeps it. [`InvalidRequest`](ErrorKind::InvalidRequest), with the code of the
/// [`ReplyError`](crate::ReplyError): the replies are not to what it waits for; or with the code
/// `unexpected_message`: it takes no message where it waits.
pub fn take_up(
    request: &mut ChatRequest,
    resume: &Resume,
    rules: impl Into<Arc<Rules>>,
) -> Result<Machine, Error> {
    let invalid =
        |reason: String| Error::new(ErrorKind::InvalidRequest, reason).with_phase(Phase::Run);
    let conflict = |reason: &'static str| {
        Error::new(ErrorKind::Conflict, Str::from_static(reason)).with_phase(Phase::Run)
    };
    let (suspended, replies) = resume
        .take()
        .ok_or_else(|| conflict("the run was taken up already"))?;
    let messages = resume.messages().to_vec();
    let mut machine = match suspended {
        Suspended::State(mut state) => {
            state
                .push_messages(messages)
                .map_err(|error| Error::from(error).with_phase(Phase::Run))?;
            let slots = state.take_slots();
            if !slots.is_empty() {
                request.context.run_slots().resume(slots);
            }
            Machine::restore(*state, rules)
        }
        Suspended::Claimed(open) => {
            let transcript = std::mem::take(&mut request.transcript);
            let mut machine = Machine::claimed(transcript, open, &request.tools, rules);
            machine
                .push_messages(messages)
                .map_err(|error| Error::from(error).with_phase(Phase::Run))?;
            machine
        }
        Suspended::Elsewhere => {
            return Err(conflict(
                "no run is there to be resumed: no layer around the agent keeps runs, as `SuspendLayer` does",
            ));
        }
    };
    if machine.is_ended() {
        return Err(conflict("the run is over"));
    }
    let at = resume.was_accepted_at();
    machine
        .reply(replies, at.unwrap_or_else(|| request.context.now()))
        .map_err(|error| {
            invalid(error.to_string())
                .with_code(error.code())
                .with_source(error)
        })?;
    Ok(machine)
}
