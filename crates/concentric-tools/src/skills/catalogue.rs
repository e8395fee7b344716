use super::{
    Skill,
    active::{active, was_active},
};
use crate::lazy::{Place, offer, one_line};
use concentric_core::{ChatRequest, Stability, Str, System, SystemSegment, ToolCall, ToolChoice};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    sync::Arc,
};

/// The skills of an agent, and which tools wait for them.
#[derive(Debug)]
pub(super) struct Catalogue {
    // By name.
    pub(super) skills: BTreeMap<Str, Skill>,
    // The skills that unlock a tool, by its name.
    pub(super) hidden: BTreeMap<Str, Vec<Str>>,
    pub(super) load_tool: Str,
    pub(super) read_tool: Str,
    pub(super) in_system: bool,
    segment: SystemSegment,
}

impl Catalogue {
    pub(super) fn new(
        skills: BTreeMap<Str, Skill>,
        hidden: BTreeMap<Str, Vec<Str>>,
        load_tool: Str,
        read_tool: Str,
        in_system: bool,
    ) -> Self {
        let mut text = format!(
            "These skills are instructions for particular tasks. When a task is what one of them is \
             for, call `{load_tool}` with its name before you begin, and do as it says.\n"
        );
        for skill in skills.values() {
            let _ = write!(text, "\n- {}: {}", skill.name, one_line(&skill.description));
        }
        Self {
            skills,
            hidden,
            load_tool,
            read_tool,
            in_system,
            segment: SystemSegment::new(text),
        }
    }

    /// Tells the model of the skills, and takes the tools out of the request whose skills are not
    /// active; returns what is offered, if that is not all.
    pub(super) fn tell(&self, request: &mut ChatRequest) -> Option<Arc<[Str]>> {
        // Without it nothing could be loaded.
        request.tools.get(&self.load_tool)?;
        insert(&mut request.system, self.segment.clone());
        if !self.in_system && self.hidden.is_empty() {
            return None;
        }
        let active = active(&request.context, &self.load_tool).unwrap_or_else(|error| {
            tracing::error!(%error, "which skills are active is not known, so none is");
            Vec::new()
        });
        if self.in_system {
            for skill in active.iter().filter_map(|name| self.skills.get(name)) {
                let text = format!("# Skill `{}`\n\n{}", skill.name, skill.instructions);
                let segment = SystemSegment::new(text).stable_for(Stability::Run);
                insert(&mut request.system, segment);
            }
        }
        let forced = match &request.options.tool_choice {
            Some(ToolChoice::Tool(name)) => Some(name),
            _ => None,
        };
        let places: HashMap<&str, usize> = active.iter().map(Str::as_str).zip(0..).collect();
        offer(&mut request.tools, |spec| {
            match self.hidden.get(&spec.name) {
                Some(by) if forced != Some(&spec.name) => {
                    let places = by.iter().filter_map(|skill| places.get(skill.as_str()));
                    places
                        .min()
                        .map_or(Place::Hidden, |at| Place::Revealed(*at))
                }
                _ => Place::Always,
            }
        })
    }

    /// What is said of a call of a tool whose skills are not active.
    pub(super) fn hint(&self, call: &ToolCall) -> Option<Str> {
        let by = self.hidden.get(call.name())?;
        if was_active(&call.context, &self.load_tool, by).unwrap_or(false) {
            return None;
        }
        let skills: Vec<_> = by.iter().map(|skill| format!("`{skill}`")).collect();
        let hint = format!(
            "The call was not run: `{}` belongs to the skill {}, which is not loaded. Load it with \
             `{}` first.",
            call.name(),
            skills.join(" or "),
            self.load_tool,
        );
        Some(hint.into())
    }
}

/// Puts a segment behind those that stay as long as it, and before those that change sooner.
fn insert(system: &mut System, segment: SystemSegment) {
    let at = system
        .iter()
        .position(|other| other.stability > segment.stability);
    let Some(at) = at else {
        return system.push(segment);
    };
    let mut all: Vec<_> = system.iter().cloned().collect();
    all.insert(at, segment);
    *system = System::default();
    for segment in all {
        system.push(segment);
    }
}
