//! Prepare: decodes, validates and edits the arguments of a call.

use super::Pipeline;
use crate::{Tool, ToolError, error::FailedCall, panic::Caught, rules::Prepare};
use concentric_core::{
    Arguments, Clearance, RoundCall, ToolOutcome, panic::catch, trace::TraceStep,
};

impl Pipeline {
    /// Decodes, validates and edits the arguments. Returns an outcome with the position and the
    /// reason if the arguments are invalid.
    pub(super) async fn prepare(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
    ) -> Result<(), ToolOutcome> {
        let rules = self.rules();
        let normal = tool.normal(&call.call.arguments);
        // The first change copies the call.
        if normal != call.call.arguments {
            call.call_mut().arguments = normal;
        }
        // Without gates and edits, the tool's own validation suffices.
        let is_soon_enough = rules.prepare.is_empty() && !call.is_recovered();
        if is_soon_enough && !rules.has_gates(&self.context) {
            return Ok(());
        }
        tool.validate(&call.call)?;
        for prepare in &rules.prepare {
            call.call_mut().arguments = Box::pin(self.edit(tool, call, prepare)).await?;
            tool.validate(&call.call)?;
        }
        self.record(call, TraceStep::Prepared(call.call.arguments.clone()));
        Ok(())
    }

    async fn edit(
        &self,
        tool: &Tool,
        call: &RoundCall,
        prepare: &Prepare,
    ) -> Result<Arguments, ToolOutcome> {
        let prepared = match catch(|| prepare.call(self.view(call, Clearance::Ungated))) {
            Ok(prepares) => Caught::new(prepares).await,
            Err(panic) => Err(panic),
        };
        match prepared {
            Ok(Ok(arguments)) => Ok(tool.normal(&arguments)),
            Ok(Err(error)) => {
                let format = tool.own_error_format();
                let failed = FailedCall {
                    tool: &call.call.name,
                    id: &call.call.id,
                    run: self.context.run_id(),
                };
                let settled = error.settle(failed, format);
                Err(settled.unwrap_or_else(|error| ToolError::from(error).failed(failed, format)))
            }
            Err(panic) => Err(panic.outcome(&call.call.name)),
        }
    }

    /// Prepares a call that only a client's history contains: its arguments are always validated.
    pub(super) async fn prepare_unverified(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
    ) -> Result<(), ToolOutcome> {
        tool.validate(&call.call)?;
        self.prepare(tool, call).await
    }
}
