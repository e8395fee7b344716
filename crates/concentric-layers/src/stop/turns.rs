use concentric_core::{
    Author, Executor, HistoryError, Message, Part, Role, Str, ToolCallPart, Turn,
    agent::StepView,
    state::{Durable, Scope, Slot, SlotError},
};

/// How many turns there were when the run began.
struct Began;

impl Slot for Began {
    type Value = Option<usize>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/stop/began";
    const SCOPE: Scope = Scope::Run;
}

/// The turns of the run, from the newest to the oldest; takes no memory.
///
/// A gate that goes by them asks before each model call, or has it [noted](note_begin), so that the
/// first time is when the run begins.
pub(super) fn of_run(step: &StepView) -> Result<impl Iterator<Item = &Turn>, SlotError> {
    let began = note_begin(step)?;
    let count = step.transcript.len().saturating_sub(began);
    Ok(step.transcript.rev().take(count))
}

/// Notes where the run begins, if it begins now, and returns where it did.
pub(super) fn note_begin(step: &StepView) -> Result<usize, SlotError> {
    let now = step.transcript.len();
    let began = step.context.state::<Began>()?;
    if let Some(began) = *began {
        return Ok(began);
    }
    step.context.update_state::<Began>(|_| Some(now))?;
    Ok(now)
}

/// The calls of `message` that somebody outside of the model executes.
pub(super) fn calls(message: &Message) -> impl Iterator<Item = &ToolCallPart> {
    let is_ours = |call: &&ToolCallPart| matches!(call.executor, Executor::Loop | Executor::Client);
    message.tool_calls().filter(is_ours)
}

/// What the gate `name` has to say to the model.
pub(super) fn said_by(name: &Str, text: impl Into<Str>) -> Result<Turn, HistoryError> {
    let part = Part::text(text).by(author(name));
    Turn::message(Message::new(Role::User, vec![part]))
}

/// How often the gate `name` had something to say in the run.
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
