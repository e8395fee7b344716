use super::{
    SkillError, SkillErrorKind,
    files::{self, Source},
    parse,
};
use crate::{Matcher, Tool};
use concentric_core::Str;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Instructions for one kind of task, with the files and tools that belong to them.
///
/// See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Skill {
    pub(super) name: Str,
    pub(super) description: Str,
    pub(super) instructions: Str,
    pub(super) license: Option<Str>,
    pub(super) compatibility: Option<Str>,
    pub(super) metadata: BTreeMap<Str, Str>,
    pub(super) allowed_tools: Vec<Str>,
    // Without symbolic links in it.
    pub(super) folder: Option<PathBuf>,
    pub(super) files: BTreeMap<Str, Source>,
    pub(super) tools: Vec<Tool>,
    pub(super) unlocks: Option<Matcher>,
}

impl Skill {
    /// Creates a skill: what it is named, when a model is to load it, and what it says then.
    ///
    /// The [limits](super#limits) are checked by [`check`](Self::check) and by
    /// [`Skills::wrap`](super::Skills::wrap).
    pub fn new(
        name: impl Into<Str>,
        description: impl Into<Str>,
        instructions: impl Into<Str>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            instructions: instructions.into(),
            license: None,
            compatibility: None,
            metadata: BTreeMap::new(),
            allowed_tools: Vec::new(),
            folder: None,
            files: BTreeMap::new(),
            tools: Vec::new(),
            unlocks: None,
        }
    }

    /// Reads the text of a `SKILL.md`, as of one that is part of the program
    /// ([`include_str!`]).
    ///
    /// Fields that the format does not have are passed over. A text with `: ` in it and without
    /// quotes, which is not YAML, is taken as it was meant, if it is on one line.
    ///
    /// ```
    /// use concentric_tools::Skill;
    ///
    /// let skill = Skill::parse(
    ///     "---\nname: haiku\ndescription: Use this: when asked for a haiku.\n---\n5, 7, 5.",
    /// )?;
    /// assert_eq!(skill.instructions(), "5, 7, 5.");
    /// # Ok::<_, concentric_tools::skills::SkillError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// It is not in the format, or over its limits.
    pub fn parse(text: &str) -> Result<Self, SkillError> {
        Ok(parse::parse(text)?)
    }

    /// Reads the skill of a folder: `SKILL.md`, and the names of the other files. Blocks.
    ///
    /// The files are read when the model asks for them.
    ///
    /// # Errors
    ///
    /// It can't be read, is not in the format or over its limits, is not named as its folder, or
    /// something in it leads out of it.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Self, SkillError> {
        files::read_skill(folder.as_ref())
    }

    /// Whether it keeps to the [limits](super#limits).
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn check(&self) -> Result<(), SkillError> {
        let checked = parse::check(self).map_err(SkillError::from);
        match &self.folder {
            Some(folder) => checked.map_err(|error| error.at(folder)),
            None => checked,
        }
    }

    /// Adds a file, under a relative path as `references/forms.md`.
    #[must_use]
    pub fn file(mut self, path: impl Into<Str>, text: impl Into<Str>) -> Self {
        self.files.insert(path.into(), Source::Text(text.into()));
        self
    }

    /// Brings a tool along, which is offered while the skill is active.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Hides tools of the toolset until the skill, or another one that unlocks them, is active.
    ///
    /// Those of the names, patterns or groups; a matcher that asks for more than the tool is asked
    /// with the arguments `{}`, and a tool of which it can't say anything, or not at once, is not
    /// hidden.
    #[must_use]
    pub fn unlocks(mut self, tools: impl Into<Matcher>) -> Self {
        let tools = tools.into();
        self.unlocks = Some(match self.unlocks {
            Some(others) => others.or(tools),
            None => tools,
        });
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for, and when to load it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What the model reads when it loads it.
    pub fn instructions(&self) -> &str {
        &self.instructions
    }

    /// Its license, as it says.
    pub fn license(&self) -> Option<&str> {
        self.license.as_deref()
    }

    /// What it needs, as it says.
    pub fn compatibility(&self) -> Option<&str> {
        self.compatibility.as_deref()
    }

    /// What else it says of itself.
    pub const fn metadata(&self) -> &BTreeMap<Str, Str> {
        &self.metadata
    }

    /// The tools it says it uses (`allowed-tools`, experimental in the format).
    ///
    /// It neither hides nor allows anything by itself: what a skill's author would allow is for you
    /// to decide. To hide them is `skill.unlocks(names)`.
    pub fn allowed_tools(&self) -> &[Str] {
        &self.allowed_tools
    }

    /// Its folder, with symbolic links resolved, if it is from one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The paths of its files, in order, relative and with `/` between their parts.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Str> {
        self.files.keys()
    }

    /// The text of a file; blocks.
    ///
    /// # Errors
    ///
    /// It is too large, or not UTF-8, or can't be read, or leads out of the folder by now. `None` if
    /// the skill has no such file.
    pub(super) fn read(&self, path: &str) -> Option<Result<Str, SkillErrorKind>> {
        let path = path.strip_prefix("./").unwrap_or(path);
        let source = self.files.get(path)?;
        Some(files::read_file(source, self.folder.as_deref()))
    }
}
