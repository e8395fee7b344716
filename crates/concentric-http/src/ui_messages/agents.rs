//! Sub-agents.

use std::collections::BTreeMap;

use concentric_core::{CallId, Event, Outcome, RunId, Str, SubAgentEvent, ToolOutcome, ToolStatus};
use serde_json::{Value, json};

use super::{calls::Calls, translate::Out};
use crate::run::object;

/// The running sub-agents.
pub(super) struct Agents {
    running: BTreeMap<RunId, Agent>,
    with_reasoning: bool,
}

struct Agent {
    name: Option<Str>,
    /// The run of the sub-agent that this one belongs to.
    parent: Option<RunId>,
    call: Option<CallId>,
    /// The client's id of the call that runs it, if the message has the call.
    wire: Option<Str>,
}

impl Agents {
    pub(super) const fn new(with_reasoning: bool) -> Self {
        Self {
            running: BTreeMap::new(),
            with_reasoning,
        }
    }

    /// Writes an event of a sub-agent.
    pub(super) fn event(&mut self, mut of: SubAgentEvent, calls: &Calls, out: &mut Out) {
        let mut parent = None;
        loop {
            if !self.running.contains_key(&of.run_id) {
                let agent = Agent {
                    name: of.agent.clone(),
                    wire: match parent {
                        None => of.call_id.as_ref().and_then(|id| calls.wire(id)),
                        Some(_) => None,
                    },
                    parent: parent.clone(),
                    call: of.call_id.clone(),
                };
                agent.write(&of.run_id, "running", out);
                self.running.insert(of.run_id.clone(), agent);
            }
            match of.event {
                Event::SubAgent(inner) => {
                    parent = Some(of.run_id);
                    of = *inner;
                }
                event => return self.own(&of.run_id, event, out),
            }
        }
    }

    fn own(&mut self, run: &RunId, event: Event, out: &mut Out) {
        let run_id = run.as_str();
        let delta = match event {
            Event::TextDelta(text) | Event::RefusalDelta(text) => {
                json!({"runId": run_id, "type": "text", "delta": text.as_str()})
            }
            Event::ReasoningDelta(text) if self.with_reasoning => {
                json!({"runId": run_id, "type": "reasoning", "delta": text.as_str()})
            }
            Event::ToolCall(event) => {
                json!({"runId": run_id, "type": "tool", "toolName": event.call.name.as_str()})
            }
            Event::ToolResult(result) => {
                return self.end_call(Some(run), &result.call_id, &result.outcome, out);
            }
            Event::Finish(finish) => {
                let status = match finish.outcome {
                    Outcome::Completed => "done",
                    // The interrupts are known when the run has ended.
                    Outcome::Interrupted => return,
                    _ => "stopped",
                };
                return self.end(run, status, out);
            }
            _ => return,
        };
        out.data("agent-delta", None, &delta, true);
    }

    /// Ends the sub-agents of a call; `parent` is the sub-agent that made the call, if any.
    pub(super) fn end_call(
        &mut self,
        parent: Option<&RunId>,
        call: &CallId,
        outcome: &ToolOutcome,
        out: &mut Out,
    ) {
        let is_of =
            |agent: &Agent| agent.parent.as_ref() == parent && agent.call.as_ref() == Some(call);
        let ended = self.running.iter().filter(|(_, agent)| is_of(agent));
        let ended: Vec<RunId> = ended.map(|(run, _)| run.clone()).collect();
        let status = match outcome.status {
            ToolStatus::Done => "done",
            _ => "failed",
        };
        for run in ended {
            self.end(&run, status, out);
        }
    }

    fn end(&mut self, run: &RunId, status: &str, out: &mut Out) {
        if let Some(agent) = self.running.remove(run) {
            agent.write(run, status, out);
        }
    }

    /// Ends all sub-agents.
    pub(super) fn end_all(&mut self, status: &str, out: &mut Out) {
        for (run, agent) in std::mem::take(&mut self.running) {
            agent.write(&run, status, out);
        }
    }
}

impl Agent {
    fn write(&self, run: &RunId, status: &str, out: &mut Out) {
        let parent = self.parent.as_ref().map(|run| run.as_str());
        let data: Value = object([
            ("runId", Some(run.as_str().into())),
            ("name", self.name.as_ref().map(|it| it.as_str().into())),
            ("parentRunId", parent.map(Into::into)),
            (
                "toolCallId",
                self.wire.as_ref().map(|it| it.as_str().into()),
            ),
            ("status", Some(status.into())),
        ]);
        out.data("agent", Some(run.as_str()), &data, false);
    }
}
