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

/// The skills of an agent, and the tools that they unlock.
#[derive(Debug)]
pub(super) struct Catalogue {
    // By name.
    pub(super) skills: BTreeMap<Str, Skill>,
    // The skills that unlock a tool, by the tool's name.
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
            "The following skills provide instructions for particular tasks. If a task matches a \
             skill, call `{load_tool}` with its name first, and follow its instructions.\n"
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

    /// Adds the catalogue to the system prompt, and removes the tools of inactive skills from the
    /// request; returns the offered tools, if not all.
    pub(super) fn tell(&self, request: &mut ChatRequest) -> Option<Arc<[Str]>> {
        // Without the load tool no skill can be loaded.
        request.tools.get(&self.load_tool)?;
        insert(&mut request.system, self.segment.clone());
        if !self.in_system && self.hidden.is_empty() {
            return None;
        }
        let active = active(&request.context, &self.load_tool).unwrap_or_else(|error| {
            tracing::error!(%error, "reading the active skills failed; none is active");
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

    /// The hint for a call of a tool whose skills are inactive.
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

/// Inserts a segment after those that are at least as stable.
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
