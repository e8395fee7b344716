use super::{CallStage, CallState, Clearance};
use crate::{
    interrupt::{Decision, SuspendedBy},
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
        decision: &Decision,
    ) -> Result<Clearance, ToolOutcome> {
        let by = match &self.stage {
            CallStage::Resumed(resume) => Some(resume.by),
            _ => None,
        };
        let outcome = match (by, decision) {
            (Some(SuspendedBy::Client), Decision::Answered(result)) => {
                ToolOutcome::of_value(result)
            }
            (_, Decision::Answered(result)) => ToolOutcome::by_person(result),
            (Some(SuspendedBy::UnknownEffect), _) => ToolOutcome::indeterminate(),
            (Some(SuspendedBy::Client), Decision::Approved { .. }) | (_, Decision::Cancelled) => {
                ToolOutcome::cancelled("The call was cancelled.")
            }
            (_, Decision::Approved { edited, .. }) => {
                return Ok(match (edited, arrived) {
                    (Some(edited), _) => {
                        let edited = Value::Object(edited.clone());
                        Clearance::Decided(Arguments::new(edited.to_string()))
                    }
                    (None, Some(arrived)) => Clearance::Approved(arrived.clone()),
                    (None, None) => Clearance::Decided(arguments.clone()),
                });
            }
            (_, Decision::Denied { reason, .. }) => ToolOutcome::denied(match reason {
                Some(reason) => format!("The call was denied: {reason}").into(),
                None => Str::from_static("The call was denied."),
            }),
            (_, Decision::Failed(error)) => ToolOutcome::failed(error.clone()),
        };
        Err(self.settle_unexecuted(outcome))
    }
}
