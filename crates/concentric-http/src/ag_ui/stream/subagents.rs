use std::collections::{BTreeMap, BTreeSet, HashMap};

use concentric_core::{
    CallId, Event, Finish, Interrupt, Outcome, RunId, Str, SubAgentEvent, ToolOutcome,
};

use super::{
    super::event::Event as Wire,
    lane::{Lane, Out, status},
};
use crate::run::{KnownCall, Names, subagent_of};
use serde_json::json;

/// The number of a sub-agent in this stream. A sub-agent's number is greater than its parent's.
type Key = u64;

/// The running sub-agents.
#[derive(Debug, Default)]
pub(super) struct Subagents {
    open: BTreeMap<Key, Subagent>,
    by_origin: HashMap<Origin, Key>,
    /// The sub-agents of each call, by the parent that made it.
    by_call: HashMap<(Option<Key>, CallId), BTreeSet<Key>>,
    by_run: HashMap<RunId, BTreeSet<Key>>,
    begun: Key,
    names: Names,
}

#[derive(Debug)]
struct Subagent {
    /// The client's id of its run.
    wire: Str,
    origin: Origin,
    children: BTreeSet<Key>,
    lane: Lane,
}

/// The identity of a sub-agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin {
    /// The parent sub-agent; `None` for the agent itself.
    parent: Option<Key>,
    run_id: RunId,
    /// The parent's call that runs the sub-agent.
    call_id: Option<CallId>,
}

/// The end of a sub-agent.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    Success,
    /// Suspended, with the interrupts of the whole run.
    Waiting(&'a [&'a Interrupt]),
    Error {
        message: &'a str,
        code: &'a str,
    },
}

impl Subagents {
    /// Writes an event of a sub-agent; `root` is the lane of the agent itself.
    pub(super) fn event(&mut self, mut inner: SubAgentEvent, root: &Lane, out: &mut Out) {
        let mut parent = None;
        loop {
            let origin = Origin {
                parent,
                run_id: inner.run_id.clone(),
                call_id: inner.call_id.clone(),
            };
            let key = match self.by_origin.get(&origin) {
                Some(key) => *key,
                None => self.start(origin, &inner, root, out),
            };
            match inner.event {
                Event::SubAgent(next) => {
                    parent = Some(key);
                    inner = *next;
                }
                Event::ToolResult(result) => {
                    self.end_call(Some(key), &result.call_id, &result.outcome, out);
                    if let Some(subagent) = self.open.get_mut(&key) {
                        subagent.lane.tool_result(&result, out);
                    }
                    return;
                }
                Event::Finish(finish) => return self.finish(key, &finish, out),
                event => {
                    if let Some(subagent) = self.open.get_mut(&key) {
                        subagent.lane.event(event, out);
                    }
                    return;
                }
            }
        }
    }

    fn start(&mut self, origin: Origin, inner: &SubAgentEvent, root: &Lane, out: &mut Out) -> Key {
        let wire = self.names.unique(inner.run_id.as_str());
        let name = inner.agent.as_ref().map_or("agent", Str::as_str);
        let parent = origin.parent.and_then(|parent| self.open.get(&parent));
        let lane = parent.map_or(root, |parent| &parent.lane);
        let call = inner.call_id.as_ref();
        out.write(&Wire::SubagentStarted {
            subagent_run_id: &wire,
            name,
            parent_subagent_run_id: parent.map(|parent| parent.wire.as_str()),
            parent_tool_call_id: call.map(|call| lane.wire_id(call)),
            parent_message_id: call.and_then(|call| lane.message_of(call)),
        });

        let key = self.begun;
        self.begun += 1;
        if let Some(parent) = origin.parent.and_then(|parent| self.open.get_mut(&parent)) {
            parent.children.insert(key);
        }
        if let Some(call) = &origin.call_id {
            let same = self.by_call.entry((origin.parent, call.clone()));
            same.or_default().insert(key);
        }
        let same = self.by_run.entry(origin.run_id.clone());
        same.or_default().insert(key);
        self.by_origin.insert(origin.clone(), key);
        let known = out.ids.subagent_calls.remove(inner.run_id.as_str());
        let known = known.into_iter().flatten().map(|(id, wire)| KnownCall {
            id,
            wire,
            answered: false,
        });
        let subagent = Subagent {
            lane: Lane::new(Some(wire.clone()), known.collect()),
            wire,
            origin,
            children: BTreeSet::new(),
        };
        self.open.insert(key, subagent);
        key
    }

    /// Removes a sub-agent.
    fn remove(&mut self, key: Key) -> Option<Subagent> {
        let subagent = self.open.remove(&key)?;
        let origin = &subagent.origin;
        self.by_origin.remove(origin);
        if let Some(parent) = origin.parent.and_then(|parent| self.open.get_mut(&parent)) {
            parent.children.remove(&key);
        }
        if let Some(call) = &origin.call_id {
            let call = (origin.parent, call.clone());
            if let Some(same) = self.by_call.get_mut(&call) {
                same.remove(&key);
                if same.is_empty() {
                    self.by_call.remove(&call);
                }
            }
        }
        if let Some(same) = self.by_run.get_mut(&origin.run_id) {
            same.remove(&key);
            if same.is_empty() {
                self.by_run.remove(&origin.run_id);
            }
        }
        Some(subagent)
    }

    /// Ends the sub-agents of the call `id` of `parent`, which has an outcome.
    pub(super) fn end_call(
        &mut self,
        parent: Option<Key>,
        id: &CallId,
        outcome: &ToolOutcome,
        out: &mut Out,
    ) {
        let Some(same) = self.by_call.get(&(parent, id.clone())) else {
            return;
        };
        let same: Vec<Key> = same.iter().copied().collect();
        let text = outcome.content.text();
        let end = match status(outcome.status) {
            "done" => End::Success,
            code => End::Error {
                message: &text,
                code,
            },
        };
        for key in same {
            self.end(key, end, &mut HashMap::new(), out);
        }
    }

    /// Handles the terminal event of a sub-agent.
    fn finish(&mut self, key: Key, finish: &Finish, out: &mut Out) {
        let code = match &finish.outcome {
            Outcome::Completed => {
                return self.end(key, End::Success, &mut HashMap::new(), out);
            }
            // The interrupts are known when the run has ended.
            Outcome::Interrupted => return,
            Outcome::Aborted { .. } => "cancelled",
            Outcome::Halted { .. } => "halted",
            Outcome::StepLimit => "step_limit",
            Outcome::CallLimit => "call_limit",
            _ => "unknown",
        };
        let message = "The agent was stopped before it finished.";
        self.end(key, End::Error { message, code }, &mut HashMap::new(), out);
    }

    /// Ends all running sub-agents.
    pub(super) fn end_all(&mut self, end: End<'_>, out: &mut Out) {
        let mut waits_for = match end {
            End::Waiting(interrupts) => self.waits_for(interrupts),
            _ => HashMap::new(),
        };
        while let Some((first, _)) = self.open.first_key_value() {
            self.end(*first, end, &mut waits_for, out);
        }
    }

    /// Ends a sub-agent after its own sub-agents; `waits_for` has the interrupt ids of each.
    fn end(
        &mut self,
        key: Key,
        end: End<'_>,
        waits_for: &mut HashMap<Key, Vec<String>>,
        out: &mut Out,
    ) {
        while let Some(child) = self.open.get(&key).and_then(|one| one.children.last()) {
            self.end(*child, end, waits_for, out);
        }
        let Some(mut subagent) = self.remove(key) else {
            return;
        };
        subagent.lane.close(matches!(end, End::Waiting(_)), out);
        let subagent_run_id = &subagent.wire;
        let outcome = match end {
            End::Success => json!({"type": "success"}),
            End::Waiting(_) => match waits_for.remove(&key) {
                Some(ids) => json!({"type": "suspended", "interruptIds": ids}),
                None => json!({"type": "suspended"}),
            },
            End::Error { message, code } => {
                return out.write(&Wire::SubagentError {
                    subagent_run_id,
                    message,
                    code,
                });
            }
        };
        out.write(&Wire::SubagentFinished {
            subagent_run_id,
            outcome,
        });
    }

    /// The ids of the interrupts that each sub-agent waits for: its own and those of its
    /// sub-agents.
    fn waits_for(&self, interrupts: &[&Interrupt]) -> HashMap<Key, Vec<String>> {
        let mut waits_for: HashMap<Key, Vec<String>> = HashMap::new();
        for interrupt in interrupts {
            let mut one = self.asking(interrupt);
            while let Some((key, subagent)) = one {
                let ids = waits_for.entry(key).or_default();
                ids.push(interrupt.id.as_str().to_owned());
                let parent = subagent.origin.parent;
                one = parent.and_then(|key| Some((key, self.open.get(&key)?)));
            }
        }
        waits_for
    }

    fn asking(&self, interrupt: &Interrupt) -> Option<(Key, &Subagent)> {
        let run = RunId::new(subagent_of(interrupt)?);
        let key = *self.by_run.get(&run)?.first()?;
        Some((key, self.open.get(&key)?))
    }

    /// The client's ids of the sub-agent's run that raised `interrupt`, and of the call it is
    /// about.
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
            Some((_, one)) => (Some(one.wire.as_str()), call.map(|id| one.lane.wire_id(id))),
            // The sub-agent was suspended in an earlier run.
            None => {
                let known = out.ids.subagent_calls.get(run);
                let call = call.map(|id| {
                    let known = known.and_then(|calls| calls.get(id));
                    known.map_or(id.as_str(), Str::as_str)
                });
                (Some(run), call)
            }
        }
    }
}
