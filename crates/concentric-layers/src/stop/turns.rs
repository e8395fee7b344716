use concentric_core::{
    Author, Executor, HistoryError, Message, Part, Role, Str, ToolCallPart, Turn,
    agent::StepView,
    state::{Durable, Scope, Slot, SlotError},
};

/// The [number of turns](StepView::turns) when the run began.
struct Began;

impl Slot for Began {
    type Value = Option<usize>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/stop/began";
    const SCOPE: Scope = Scope::Run;
}

/// Returns the turns of the run, from the newest to the oldest, without allocation. A rewritten
/// conversation may have fewer.
///
/// A gate that uses them must call this function or [`note_begin`] before each model call, so that
/// the first call is made when the run begins.
pub(super) fn of_run(step: &StepView) -> Result<impl Iterator<Item = &Turn>, SlotError> {
    let began = note_begin(step)?;
    let count = step.turns.saturating_sub(began);
    Ok(step.transcript.rev().take(count))
}

/// Returns the number of turns at the beginning of the run, and records it on the first call.
pub(super) fn note_begin(step: &StepView) -> Result<usize, SlotError> {
    let now = step.turns;
    let began = step.context.state::<Began>()?;
    if let Some(began) = *began {
        return Ok(began);
    }
    step.context.update_state::<Began>(|_| Some(now))?;
    Ok(now)
}

/// Returns the calls of `message` that the model's provider does not execute.
pub(super) fn calls(message: &Message) -> impl Iterator<Item = &ToolCallPart> {
    let is_ours = |call: &&ToolCallPart| matches!(call.executor, Executor::Loop | Executor::Client);
    message.tool_calls().filter(is_ours)
}

/// Returns a turn with a message of the gate `name` to the model.
pub(super) fn said_by(name: &Str, text: impl Into<Str>) -> Result<Turn, HistoryError> {
    let part = Part::text(text).by(author(name));
    Turn::message(Message::new(Role::User, vec![part]))
}

/// Returns the number of messages of the gate `name` in the run.
pub(super) fn times_said_by(name: &Str, step: &StepView) -> Result<usize, SlotError> {
    let author = author(name);
    let is_its = |turn: &&Turn| {
        let parts = &turn.as_message().parts;
        parts.iter().any(|part| part.author == author)
    };
    Ok(of_run(step)?.filter(is_its).count())
}

fn author(name: &Str) -> Author {
    Author::Layer { name: name.clone() }
}
