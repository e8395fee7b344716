use super::{CallStage, CallState, Permit};
use crate::{
    interrupt::{Ruling, SuspendedBy},
    message::{Arguments, ToolOutcome},
    text::Str,
};
use serde_json::Value;

impl CallState {
    /// Converts a decision about the call with `arguments` to a clearance.
    ///
    /// `arrived` contains the arguments that were decided about, if a layer had changed the call.
    /// The caller checks edited arguments.
    ///
    /// # Errors
    ///
    /// The outcome of the call, if it does not run.
    pub fn decide(
        &self,
        arguments: &Arguments,
        arrived: Option<&Arguments>,
        decision: &Ruling,
    ) -> Result<Permit, ToolOutcome> {
        let by = match &self.stage {
            CallStage::Resumed(resume) => Some(resume.by),
            _ => None,
        };
        let outcome = match (by, decision) {
            (Some(SuspendedBy::Client), Ruling::Answered(result)) => ToolOutcome::of_value(result),
            (_, Ruling::Answered(result)) => ToolOutcome::by_person(result),
            (Some(SuspendedBy::UnknownEffect), _) => ToolOutcome::indeterminate(),
            (Some(SuspendedBy::Client), Ruling::Approved { .. }) | (_, Ruling::Cancelled) => {
                ToolOutcome::cancelled("The call was cancelled.")
            }
            (_, Ruling::Approved { edited, .. }) => {
                return Ok(match (edited, arrived) {
                    (Some(edited), _) => {
                        let edited = Value::Object(edited.clone());
                        Permit::Exactly(Arguments::new(edited.to_string()))
                    }
                    (None, Some(arrived)) => Permit::AsAsked(arrived.clone()),
                    (None, None) => Permit::Exactly(arguments.clone()),
                });
            }
            (_, Ruling::Denied { reason, .. }) => ToolOutcome::denied(match reason {
                Some(reason) => format!("The call was denied: {reason}").into(),
                None => Str::from_static("The call was denied."),
            }),
            (_, Ruling::Failed(error)) => ToolOutcome::failed(error.clone()),
        };
        Err(self.settle_unexecuted(outcome))
    }
}
