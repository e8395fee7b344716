//! The tools that a model is offered.

use crate::{
    error::{Error, ErrorKind},
    text::Str,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fmt,
    sync::{Arc, LazyLock},
};

/// What a model is told of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// Its name (`gen_ai.tool.name`).
    pub name: Str,
    /// What it is for, and when to use it (`gen_ai.tool.description`).
    #[serde(default)]
    pub description: Str,
    /// The JSON Schema of its arguments, an object.
    pub input_schema: Arc<Value>,
    /// The JSON Schema of its structured output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Arc<Value>>,
    /// What it does to the world.
    #[serde(default)]
    pub annotations: Annotations,
    /// What it belongs to, for rules that hold for several tools; the model is not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Str>,
    /// Whether it passes the call's idempotency key (`Context::idempotency_key`) to a service that
    /// executes a key once. Not serialised: only the tool itself can declare it.
    #[serde(skip)]
    pub keyed: bool,
}

impl ToolSpec {
    /// Creates a tool that takes what `input_schema` says.
    pub fn new(
        name: impl Into<Str>,
        description: impl Into<Str>,
        input_schema: impl Into<Arc<Value>>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: input_schema.into(),
            output_schema: None,
            annotations: Annotations::default(),
            groups: Vec::new(),
            keyed: false,
        }
    }

    /// Whether executing a call a second time changes nothing more: the tool is read-only,
    /// idempotent or [keyed](Self::keyed).
    pub fn may_run_again(&self) -> bool {
        self.annotations.read_only || self.annotations.idempotent || self.keyed
    }
}

/// What a tool does to the world, in MCP's terms (`ToolAnnotations`).
///
/// The default is the worst: destructive, not idempotent, open world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Annotations {
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Str>,
    /// It changes nothing.
    #[serde(rename = "readOnlyHint")]
    pub read_only: bool,
    /// It may destroy something; else it only adds. Means nothing if it is read-only.
    #[serde(rename = "destructiveHint")]
    pub destructive: bool,
    /// To call it again with the same arguments changes nothing more.
    #[serde(rename = "idempotentHint")]
    pub idempotent: bool,
    /// It reaches things outside the system.
    #[serde(rename = "openWorldHint")]
    pub open_world: bool,
}

impl Default for Annotations {
    fn default() -> Self {
        Self {
            title: None,
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        }
    }
}

impl Annotations {
    /// A tool that only reads, and only here.
    pub fn read_only() -> Self {
        Self {
            read_only: true,
            destructive: false,
            idempotent: true,
            open_world: false,
            ..Self::default()
        }
    }

    /// A tool that changes something, and nothing more when it is called again with the same
    /// arguments.
    pub fn idempotent() -> Self {
        Self {
            idempotent: true,
            ..Self::default()
        }
    }

    /// Says that the tool only reaches what is here.
    #[must_use]
    pub const fn closed_world(mut self) -> Self {
        self.open_world = false;
        self
    }
}

/// The tools of a request; cheap to clone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolSpecs(Arc<Vec<Arc<ToolSpec>>>);

impl Default for ToolSpecs {
    /// No tools; allocates nothing.
    fn default() -> Self {
        static NONE: LazyLock<ToolSpecs> = LazyLock::new(|| ToolSpecs(Arc::default()));
        NONE.clone()
    }
}

impl ToolSpecs {
    /// Creates a list of tools.
    pub fn new(specs: impl IntoIterator<Item = Arc<ToolSpec>>) -> Self {
        Self(Arc::new(specs.into_iter().collect()))
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.0.iter().find(|spec| spec.name == *name)
    }

    /// The tools, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<ToolSpec>> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a tool at the end.
    pub fn push(&mut self, spec: Arc<ToolSpec>) {
        Arc::make_mut(&mut self.0).push(spec);
    }

    /// Keeps the tools that `keep` says.
    pub fn retain(&mut self, keep: impl FnMut(&Arc<ToolSpec>) -> bool) {
        Arc::make_mut(&mut self.0).retain(keep);
    }

    /// Whether each name stands once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`]: two tools have one name.
    pub fn check(&self) -> Result<(), Error> {
        match self.duplicate() {
            None => Ok(()),
            Some(name) => Err(Error::new(
                ErrorKind::Configuration,
                format!("two tools are named `{name}`"),
            )),
        }
    }

    /// The first name that stands twice.
    pub fn duplicate(&self) -> Option<&Str> {
        let mut seen = std::collections::HashSet::new();
        self.iter()
            .map(|spec| &spec.name)
            .find(|name| !seen.insert(name.as_str()))
    }
}

impl<'a> IntoIterator for &'a ToolSpecs {
    type Item = &'a Arc<ToolSpec>;
    type IntoIter = std::slice::Iter<'a, Arc<ToolSpec>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Arc<ToolSpec>> for ToolSpecs {
    fn from_iter<I: IntoIterator<Item = Arc<ToolSpec>>>(specs: I) -> Self {
        Self::new(specs)
    }
}

/// A tool of the request has the name of one of the agent's own tools.
///
/// The source of an [`ErrorKind::InvalidRequest`] error: the request is at fault, not the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolNameTaken {
    /// The name.
    pub name: Str,
}

impl ToolNameTaken {
    /// Creates the error for the tool named `name`.
    pub fn new(name: impl Into<Str>) -> Self {
        Self { name: name.into() }
    }
}

impl fmt::Display for ToolNameTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the agent has a tool named `{}` of its own, rename the request's",
            self.name
        )
    }
}

impl std::error::Error for ToolNameTaken {}
