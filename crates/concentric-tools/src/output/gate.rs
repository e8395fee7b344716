use super::{Output, Progress};
use concentric_core::{
    BoxError, Message, Part, Role, Turn,
    agent::{BeforeFinish, StepGate, StepView},
};
use serde::de::DeserializeOwned;
use std::fmt;

/// Has the model try again, if its answer is not of the type that it is to be.
///
/// See the [module docs](super).
pub struct OutputGate<T> {
    output: Output<T>,
}

impl<T> OutputGate<T> {
    pub(super) const fn new(output: Output<T>) -> Self {
        Self { output }
    }
}

impl<T> StepGate for OutputGate<T>
where
    T: DeserializeOwned + 'static,
{
    fn name(&self) -> &str {
        "output"
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        let output = &self.output;
        let context = &step.context;
        let progress = *context.state::<Progress>()?;
        if output.separately && !progress.asked {
            context.update_state::<Progress>(|it| Progress { asked: true, ..*it })?;
            let name = &output.schema().name;
            let ask = format!("Now give your answer as JSON, as the schema `{name}` says.");
            return Ok(BeforeFinish::Continue(vec![said(ask)?]));
        }
        let last = step.transcript.last().map(Turn::as_message);
        let answer = last.filter(|message| message.role == Role::Assistant);
        let text = answer.map(|answer| answer.text()).unwrap_or_default();
        let Err(error) = output.of_text(&text) else {
            return Ok(BeforeFinish::Finish);
        };
        if progress.told >= output.tries {
            return Ok(BeforeFinish::halt(error.to_string()));
        }
        context.update_state::<Progress>(|it| Progress {
            told: it.told.saturating_add(1),
            ..*it
        })?;
        let correct = format!("{error}. Answer again, with nothing but the JSON.");
        Ok(BeforeFinish::Continue(vec![said(correct)?]))
    }
}

fn said(text: String) -> Result<Turn, BoxError> {
    Ok(Turn::message(Message::new(
        Role::User,
        vec![Part::text(text)],
    ))?)
}

impl<T> fmt::Debug for OutputGate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputGate")
            .field("output", &self.output)
            .finish()
    }
}
