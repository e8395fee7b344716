use super::{
    SkillError,
    files::{self, Source},
    parse,
};
use crate::{Matcher, Tool};
use concentric_core::Str;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Instructions for a kind of task, with their files and tools.
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
    // Canonical path, without symbolic links.
    pub(super) folder: Option<PathBuf>,
    pub(super) files: BTreeMap<Str, Source>,
    pub(super) tools: Vec<Tool>,
    pub(super) unlocks: Option<Matcher>,
}

impl Skill {
    /// Creates a skill from its name, a description of when to load it, and its instructions.
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

    /// Parses the text of a `SKILL.md`, such as one that is compiled into the program
    /// ([`include_str!`]).
    ///
    /// Unknown fields are ignored. An unquoted value with `: `, which is invalid YAML, is accepted
    /// if it is on one line.
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
    /// Returns an error if the text does not comply with the format or its limits.
    pub fn parse(text: &str) -> Result<Self, SkillError> {
        parse::parse(text)
    }

    /// Reads the skill in a folder: `SKILL.md`, and the names of the other files. Blocks.
    ///
    /// The files are read when the model requests them.
    ///
    /// # Errors
    ///
    /// Returns an error if the skill cannot be read, does not comply with the format or its limits,
    /// has another name than its folder, or contains a link that points outside of the folder.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Self, SkillError> {
        files::read_skill(folder.as_ref())
    }

    /// Checks that the skill complies with the [limits](super#limits).
    ///
    /// # Errors
    ///
    /// Returns an error if it does not.
    pub fn check(&self) -> Result<(), SkillError> {
        let checked = parse::check(self);
        match &self.folder {
            Some(folder) => checked.map_err(|error| error.at(folder)),
            None => checked,
        }
    }

    /// Adds a file with a relative path such as `references/forms.md`.
    #[must_use]
    pub fn file(mut self, path: impl Into<Str>, text: impl Into<Str>) -> Self {
        self.files.insert(path.into(), Source::Text(text.into()));
        self
    }

    /// Adds a tool that is offered while the skill is active.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Hides tools of the toolset until this skill, or another one that unlocks them, is active.
    ///
    /// `tools` selects them by name, pattern or group. A matcher that depends on the call is
    /// evaluated with the arguments `{}`; if it fails or is asynchronous, the tool is not hidden.
    #[must_use]
    pub fn unlocks(mut self, tools: impl Into<Matcher>) -> Self {
        let tools = tools.into();
        self.unlocks = Some(match self.unlocks {
            Some(others) => others.or(tools),
            None => tools,
        });
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The purpose of the skill, and when to load it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The instructions that the model reads after loading the skill.
    pub fn instructions(&self) -> &str {
        &self.instructions
    }

    /// The license field.
    pub fn license(&self) -> Option<&str> {
        self.license.as_deref()
    }

    /// The compatibility field: the requirements of the skill.
    pub fn compatibility(&self) -> Option<&str> {
        self.compatibility.as_deref()
    }

    /// Further metadata.
    pub const fn metadata(&self) -> &BTreeMap<Str, Str> {
        &self.metadata
    }

    /// The tools in the `allowed-tools` field (experimental in the format).
    ///
    /// The field neither hides nor allows any tool. To hide these tools, call
    /// `skill.unlocks(names)`.
    pub fn allowed_tools(&self) -> &[Str] {
        &self.allowed_tools
    }

    /// The canonical path of the skill's folder, if it was read from one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The relative paths of the skill's files, sorted, with `/` as the separator.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Str> {
        self.files.keys()
    }

    /// Reads the text of a file; blocks. Returns `None` if the skill has no such file. Returns an
    /// error if the file is too large, not UTF-8 or cannot be read, or if its path now points
    /// outside of the folder.
    pub(super) fn read(&self, path: &str) -> Option<Result<Str, SkillError>> {
        let path = path.strip_prefix("./").unwrap_or(path);
        let source = self.files.get(path)?;
        Some(files::read_file(source, self.folder.as_deref()))
    }
}
