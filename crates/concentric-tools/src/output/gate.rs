use super::{Output, VALUE_COMPLETE, progress::Progress, unfenced};
use concentric_core::{
    BoxError, CustomEvent, Error, Message, Part, Role, Turn,
    agent::{FinishDecision, GateOrder, StepDecision, StepDraft, StepGate, StepView},
    hooks::Interest,
    state::SlotError,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Makes the model try again if its answer does not match the type.
///
/// See the [module docs](super).
pub(super) struct OutputGate<T> {
    pub(super) output: Output<T>,
}

impl<T> OutputGate<T>
where
    T: DeserializeOwned,
{
    fn progress(&self, step: &StepView) -> Result<Progress, SlotError> {
        let context = &step.context;
        Progress::of(context, context.depth(), &self.output.schema().name)
    }

    fn note(&self, step: &StepView, progress: Progress) -> Result<(), SlotError> {
        let context = &step.context;
        progress.note(context, context.depth(), &self.output.schema().name)
    }
}

impl<T> StepGate for OutputGate<T>
where
    T: DeserializeOwned + 'static,
{
    fn name(&self) -> &str {
        "output"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP | Interest::BEFORE_FINISH
    }

    fn order(&self) -> GateOrder {
        GateOrder::Answer
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        // The stored progress belongs to another attempt, or to another call of a nested agent.
        if draft.step == 0 && self.progress(draft)? != Progress::default() {
            self.note(draft, Progress::default())?;
        }
        Ok(StepDecision::Continue)
    }

    async fn before_finish(&self, draft: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        let output = &self.output;
        let progress = self.progress(draft)?;
        if progress.other {
            return Ok(FinishDecision::Finish);
        }
        if output.separately && !progress.asked {
            let asked = true;
            self.note(draft, Progress { asked, ..progress })?;
            let name = &output.schema().name;
            let ask = format!("Now answer with JSON that matches the schema `{name}`.");
            draft.push(said(ask)?);
            return Ok(FinishDecision::Retry { void: false });
        }
        let last = draft.transcript.last().map(Turn::as_message);
        let answer = last.filter(|message| message.role == Role::Assistant);
        let text = answer.map(|answer| answer.text()).unwrap_or_default();
        let Err(error) = output.of_text(&text) else {
            let object: Value = serde_json::from_str(unfenced(&text))?;
            let value = json!({"schema": output.schema().name, "object": object, "raw": text});
            // The value is also in the finish: the outcome does not depend on a slow consumer.
            let _ = draft.context.emit(CustomEvent::new(VALUE_COMPLETE, value));
            return Ok(FinishDecision::Finish);
        };
        if progress.told >= output.tries {
            return Err(Error::from(error).into());
        }
        let told = progress.told.saturating_add(1);
        self.note(draft, Progress { told, ..progress })?;
        let correct = format!("{error}. Answer again with only the JSON.");
        draft.push(said(correct)?);
        Ok(FinishDecision::Retry { void: true })
    }
}

fn said(text: String) -> Result<Turn, BoxError> {
    Ok(Turn::message(Message::new(
        Role::User,
        vec![Part::text(text)],
    ))?)
}
