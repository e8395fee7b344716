use concentric_core::{
    CallId, Event, Finish, Interrupt, Outcome, RunId, Str, SubAgentEvent, ToolOutcome,
};

use super::{
    super as wire,
    interrupt::subagent_of,
    lane::{Lane, Out, status},
    names::Names,
};
use wire::SubagentOutcome;

/// The sub-agents that are at work, each after the one that it works for.
#[derive(Debug, Default)]
pub(super) struct Subagents {
    open: Vec<Subagent>,
    names: Names,
}

#[derive(Debug)]
struct Subagent {
    /// What the client calls its run.
    wire: Str,
    /// What the client calls the run of the sub-agent that it works for; none is the agent itself.
    parent: Option<Str>,
    run_id: RunId,
    /// The call that it is, of whom it works for.
    call_id: Option<CallId>,
    lane: Lane,
}

/// How a sub-agent ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    Success,
    /// It waits, for these if they ask for it or for those that work for it.
    Waiting(&'a [&'a Interrupt]),
    Error {
        message: &'a str,
        code: &'a str,
    },
}

impl Subagents {
    /// Writes what an event of a sub-agent of the agent `root` is to the client.
    pub(super) fn event(&mut self, mut inner: SubAgentEvent, root: &Lane, out: &mut Out) {
        let mut parent = None;
        loop {
            let at = self.find(&parent, &inner);
            let at = at.unwrap_or_else(|| self.start(parent.take(), &inner, root, out));
            let Some(subagent) = self.open.get_mut(at) else {
                return;
            };
            match inner.event {
                Event::SubAgent(next) => {
                    parent = Some(subagent.wire.clone());
                    inner = *next;
                }
                Event::ToolResult(result) => {
                    let wire = subagent.wire.clone();
                    self.end_call(Some(&wire), &result.call_id, &result.outcome, out);
                    let subagent = self.open.iter_mut().find(|one| one.wire == wire);
                    if let Some(subagent) = subagent {
                        subagent.lane.tool_result(&result, out);
                    }
                    return;
                }
                Event::Finish(finish) => return self.finish(at, &finish, out),
                event => return subagent.lane.event(event, out),
            }
        }
    }

    fn find(&self, parent: &Option<Str>, inner: &SubAgentEvent) -> Option<usize> {
        self.open.iter().position(|one| {
            one.run_id == inner.run_id && one.call_id == inner.call_id && one.parent == *parent
        })
    }

    fn start(
        &mut self,
        parent: Option<Str>,
        inner: &SubAgentEvent,
        root: &Lane,
        out: &mut Out,
    ) -> usize {
        let wire = self.names.unique(inner.run_id.as_str());
        let name = inner.agent.as_ref().map_or("agent", Str::as_str);
        let mut started = wire::SubagentStarted::new(wire.as_str(), name);
        started.parent_subagent_run_id = parent.as_ref().map(|run| run.as_str().to_owned());
        if let Some(call) = &inner.call_id {
            let of = self
                .open
                .iter()
                .find(|one| Some(&one.wire) == parent.as_ref());
            let lane = of.map_or(root, |one| &one.lane);
            started.parent_tool_call_id = Some(lane.wire_id(call).to_owned());
            started.parent_message_id = lane.message_of(call).map(str::to_owned);
        }
        out.write(started);
        let known = out.ids.subagent_calls.remove(inner.run_id.as_str());
        self.open.push(Subagent {
            lane: Lane::new(Some(wire.clone()), known.unwrap_or_default()),
            wire,
            parent,
            run_id: inner.run_id.clone(),
            call_id: inner.call_id.clone(),
        });
        self.open.len() - 1
    }

    /// Ends what is the call `id` of `parent`: it has its outcome.
    pub(super) fn end_call(
        &mut self,
        parent: Option<&Str>,
        id: &CallId,
        outcome: &ToolOutcome,
        out: &mut Out,
    ) {
        let is_it =
            |one: &Subagent| one.call_id.as_ref() == Some(id) && one.parent.as_ref() == parent;
        if !self.open.iter().any(is_it) {
            return;
        }
        let told = outcome.content.text();
        let end = match status(outcome.status) {
            "done" => End::Success,
            code => End::Error {
                message: &told,
                code,
            },
        };
        while let Some(at) = self.open.iter().position(is_it) {
            self.end(at, end, out);
        }
    }

    /// The sub-agent says itself that it is over.
    fn finish(&mut self, at: usize, finish: &Finish, out: &mut Out) {
        let code = match &finish.outcome {
            Outcome::Completed => return self.end(at, End::Success, out),
            // What for is known when the run has ended.
            Outcome::Interrupted => return,
            Outcome::Aborted { .. } => "cancelled",
            Outcome::Halted { .. } => "halted",
            Outcome::StepLimit => "step_limit",
            Outcome::CallLimit => "call_limit",
            _ => "unknown",
        };
        let message = "The agent was stopped before it was done.";
        self.end(at, End::Error { message, code }, out);
    }

    /// Ends all that are at work.
    pub(super) fn end_all(&mut self, end: End<'_>, out: &mut Out) {
        while !self.open.is_empty() {
            self.end(0, end, out);
        }
    }

    /// Ends a sub-agent, after those that work for it.
    fn end(&mut self, at: usize, end: End<'_>, out: &mut Out) {
        let Some(wire) = self.open.get(at).map(|one| one.wire.clone()) else {
            return;
        };
        let waits_for = match end {
            End::Waiting(interrupts) => self.waits_for(&wire, interrupts),
            _ => Vec::new(),
        };
        // They stand behind it, and so does all that stands behind them.
        while let Some(child) = self
            .open
            .iter()
            .rposition(|one| one.parent.as_ref() == Some(&wire))
        {
            self.end(child, end, out);
        }
        if at >= self.open.len() {
            return;
        }
        let mut lane = self.open.remove(at).lane;
        lane.close(matches!(end, End::Waiting(_)), out);
        match end {
            End::Success => {
                let finished = wire::SubagentFinished::new(wire.as_str());
                out.write(finished.outcome(SubagentOutcome::Success));
            }
            End::Waiting(_) => {
                let interrupt_ids = (!waits_for.is_empty()).then_some(waits_for);
                let finished = wire::SubagentFinished::new(wire.as_str());
                out.write(finished.outcome(SubagentOutcome::Suspended { interrupt_ids }));
            }
            End::Error { message, code } => {
                out.write(wire::SubagentError::new(wire.as_str(), message).code(code));
            }
        }
    }

    /// Those of `interrupts` that `wire` asks, or one that works for it.
    fn waits_for(&self, wire: &Str, interrupts: &[&Interrupt]) -> Vec<String> {
        let asked_there = |interrupt: &&&Interrupt| {
            let mut one = self.asking(interrupt);
            while let Some(subagent) = one {
                if subagent.wire == *wire {
                    return true;
                }
                let parent = subagent.parent.as_ref();
                one = self.open.iter().find(|one| Some(&one.wire) == parent);
            }
            false
        };
        let asked = interrupts.iter().filter(asked_there);
        asked.map(|asked| asked.id.as_str().to_owned()).collect()
    }

    fn asking(&self, interrupt: &Interrupt) -> Option<&Subagent> {
        let run = subagent_of(interrupt)?;
        self.open.iter().find(|one| one.run_id.as_str() == run)
    }

    /// What the client calls the run of the sub-agent that asks, and the call it asks about.
    pub(super) fn named<'a>(
        &'a self,
        interrupt: &'a Interrupt,
        root: &'a Lane,
        out: &'a Out,
    ) -> (Option<&'a str>, Option<&'a str>) {
        let call = interrupt.call_id.as_ref();
        let Some(run) = subagent_of(interrupt) else {
            return (None, call.map(|id| root.wire_id(id)));
        };
        match self.asking(interrupt) {
            Some(one) => (Some(one.wire.as_str()), call.map(|id| one.lane.wire_id(id))),
            // It waits since an earlier run.
            None => {
                let known = out.ids.subagent_calls.get(run);
                let call = call.map(|id| {
                    let known = known.and_then(|calls| calls.iter().rfind(|call| call.id == *id));
                    known.map_or(id.as_str(), |call| call.wire.as_str())
                });
                (Some(run), call)
            }
        }
    }
}
