use super::{
    Skill, SkillError,
    active::active,
    catalogue::Catalogue,
    files,
    tools::{load_tool, read_tool},
};
use crate::{
    Matcher, Tool, Toolset,
    error::no_toolset,
    lazy::{OfferToolsLayer, is_about},
};
use concentric_core::{
    BoxError, Error, ErrorKind, Str, ToolCall,
    agent::{Installer, Plugin},
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// The skills of an agent.
///
/// See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Skills {
    skills: Vec<Skill>,
    load_tool: Str,
    read_tool: Str,
    in_system: bool,
}

impl Default for Skills {
    fn default() -> Self {
        Self {
            skills: Vec::new(),
            load_tool: Str::from_static("load_skill"),
            read_tool: Str::from_static("read_skill_file"),
            in_system: false,
        }
    }
}

impl Skills {
    /// Creates an empty set of skills.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the skills in a folder: one from each subfolder with a `SKILL.md`. Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if one of them [cannot be read](Skill::from_dir).
    pub fn from_dir(root: impl AsRef<Path>) -> Result<Self, SkillError> {
        let (skills, errors) = Self::scan(root);
        errors.into_iter().next().map_or(Ok(skills), Err)
    }

    /// Reads the skills in a folder like [`from_dir`](Self::from_dir), but skips invalid ones:
    /// returns the valid skills, and the errors of the others.
    pub fn scan(root: impl AsRef<Path>) -> (Self, Vec<SkillError>) {
        let mut skills = Self::new();
        let mut errors = Vec::new();
        match files::skill_folders(root.as_ref()) {
            Err(error) => errors.push(error),
            Ok(folders) => {
                for folder in folders {
                    match folder.and_then(|folder| files::read_skill(&folder)) {
                        Ok(skill) => skills.skills.push(skill),
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        (skills, errors)
    }

    /// Adds a skill.
    #[must_use]
    pub fn skill(mut self, skill: Skill) -> Self {
        self.skills.push(skill);
        self
    }

    /// Adds skills, such as those of another folder.
    #[must_use]
    pub fn skills(mut self, skills: impl IntoIterator<Item = Skill>) -> Self {
        self.skills.extend(skills);
        self
    }

    /// Changes the skill named `name`, for example to add the tools that a skill from a folder
    /// unlocks.
    ///
    /// # Errors
    ///
    /// Returns an error if no skill has this name.
    pub fn edit(
        mut self,
        name: &str,
        change: impl FnOnce(Skill) -> Skill,
    ) -> Result<Self, SkillError> {
        match self.skills.iter_mut().find(|skill| skill.name == *name) {
            Some(skill) => *skill = change(skill.clone()),
            None => return Err(SkillError::Unknown(name.into())),
        }
        Ok(self)
    }

    /// Sets the name of the tool that loads a skill; the default is `load_skill`.
    ///
    /// Skills that were loaded under another name are inactive. An agent and a nested one in its
    /// model's place that both have skills need two names, so that each has its own active skills.
    #[must_use]
    pub fn load_tool_name(mut self, name: impl Into<Str>) -> Self {
        self.load_tool = name.into();
        self
    }

    /// Sets the name of the tool that reads a skill's file; the default is `read_skill_file`.
    #[must_use]
    pub fn read_tool_name(mut self, name: impl Into<Str>) -> Self {
        self.read_tool = name.into();
        self
    }

    /// Adds the instructions of active skills to the system prompt, in load order, instead of to
    /// the result of the load tool.
    ///
    /// Each load then changes the text before the conversation, which invalidates the provider's
    /// prompt cache; see the [module docs](super#place-of-the-instructions).
    #[must_use]
    pub const fn instructions_in_system(mut self) -> Self {
        self.in_system = true;
        self
    }

    /// Matches calls of any tool while the skill named `name` is active, for gates and layers.
    ///
    /// The matcher uses the [active skills](super#active-skills), never the history, so a client
    /// cannot open or close a gate with it. It [fails](crate::matcher#failing-predicates) if the
    /// set does not contain the skill yet. It uses the present name of the load tool.
    pub fn active(&self, name: impl Into<Str>) -> Matcher {
        let name = name.into();
        let load_tool = self.load_tool.clone();
        let is_known = self.skills.iter().any(|skill| skill.name == name);
        Matcher::try_when(move |call: &ToolCall| match is_known {
            true => Ok(active(&call.context, &load_tool)?.contains(&name)),
            false => Err(BoxError::from(SkillError::Unknown(name.clone()))),
        })
    }

    /// Iterates over the skills in the order they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Skill> {
        self.skills.iter()
    }

    /// Adds the tools of the skills, and those that load and read skills, to `tools`; returns the
    /// layer that adds the skills to requests.
    ///
    /// The layer must be inside of the [`AgentLayer`](concentric_core::AgentLayer) that receives
    /// the toolset. Tools that are added to the toolset later are not hidden. Without skills, the
    /// toolset is unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if two skills have the same name, or one is [over the
    /// limits](Skill::check).
    pub fn wrap(self, mut tools: Toolset) -> Result<(Toolset, OfferToolsLayer), SkillError> {
        let mut skills = BTreeMap::new();
        for skill in self.skills {
            skill.check()?;
            tools = tools.tools(skill.tools.iter().cloned());
            if let Some(skill) = skills.insert(skill.name.clone(), skill) {
                return Err(SkillError::DuplicateName(skill.name));
            }
        }
        let mut hidden = BTreeMap::<Str, Vec<Str>>::new();
        for tool in tools.iter().filter(|tool| !tool.reveals()).map(Tool::spec) {
            for skill in skills.values() {
                let brings = skill.tools.iter().any(|own| own.spec().name == tool.name);
                let unlocks = || skill.unlocks.as_ref().is_some_and(|m| is_about(m, tool));
                if brings || unlocks() {
                    let by = hidden.entry(tool.name.clone()).or_default();
                    by.push(skill.name.clone());
                }
            }
        }
        let catalogue = Arc::new(Catalogue::new(
            skills,
            hidden,
            self.load_tool,
            self.read_tool,
            self.in_system,
        ));
        if !catalogue.skills.is_empty() {
            tools = tools
                .tool(load_tool(Arc::clone(&catalogue)))
                .tools(read_tool(Arc::clone(&catalogue)));
        }
        if !catalogue.hidden.is_empty() {
            let catalogue = Arc::clone(&catalogue);
            tools = tools.hint(move |call| catalogue.hint(call));
        }
        let layer = OfferToolsLayer::new(move |request| catalogue.tell(request));
        Ok((tools, layer))
    }
}

/// Adds the skills to the agent's [`Toolset`]. An agent without one fails, as does an agent with
/// invalid skills.
impl Plugin for Skills {
    fn install(self, at: &mut Installer<'_>) {
        let Some(tools) = at.tools_mut::<Toolset>() else {
            return at.fault(no_toolset("Skills"));
        };
        match self.wrap(tools.clone()) {
            Ok((wrapped, layer)) => {
                *tools = wrapped;
                at.model_layer(layer);
            }
            Err(error) => {
                let message = error.to_string();
                at.fault(Error::new(ErrorKind::Configuration, message).with_source(error));
            }
        }
    }
}

impl IntoIterator for Skills {
    type Item = Skill;
    type IntoIter = std::vec::IntoIter<Skill>;

    fn into_iter(self) -> Self::IntoIter {
        self.skills.into_iter()
    }
}

impl<'a> IntoIterator for &'a Skills {
    type Item = &'a Skill;
    type IntoIter = std::slice::Iter<'a, Skill>;

    fn into_iter(self) -> Self::IntoIter {
        self.skills.iter()
    }
}

impl FromIterator<Skill> for Skills {
    fn from_iter<I: IntoIterator<Item = Skill>>(skills: I) -> Self {
        Self::new().skills(skills)
    }
}
