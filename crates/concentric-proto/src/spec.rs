//! Specifications of the tools that are offered to a model.

use crate::{
    error::{Error, ErrorKind},
    text::Str,
};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, LazyLock, OnceLock},
};

/// The specification of a tool, as it is offered to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The name (`gen_ai.tool.name`).
    pub name: Str,
    /// The purpose of the tool and when to use it (`gen_ai.tool.description`).
    #[serde(default)]
    pub description: Str,
    /// The JSON Schema of the arguments, which must describe an object.
    pub input_schema: Arc<Value>,
    /// The JSON Schema of the structured output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Arc<Value>>,
    /// The behavior of the tool, in MCP's terms.
    #[serde(default)]
    pub annotations: Annotations,
    /// The groups that the tool belongs to, for rules that apply to several tools. Not sent to the
    /// model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Str>,
    /// Whether the tool passes the call's idempotency key (`Context::idempotency_key`) to a service
    /// that executes each key once. Not serialized: only the tool itself can declare it.
    #[serde(skip)]
    pub keyed: bool,
}

impl ToolSpec {
    /// Creates the specification of a tool whose arguments match `input_schema`.
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

    /// Returns whether executing a call twice has the same effect as once: the tool is read-only,
    /// idempotent or [keyed](Self::keyed).
    pub fn may_run_again(&self) -> bool {
        self.annotations.read_only || self.annotations.idempotent || self.keyed
    }
}

/// The behavior of a tool, in MCP's terms (`ToolAnnotations`).
///
/// The default is the most cautious: destructive, not idempotent, open world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Annotations {
    /// A display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Str>,
    /// The tool does not modify anything.
    #[serde(rename = "readOnlyHint")]
    pub read_only: bool,
    /// The tool may perform destructive updates; otherwise its updates are additive. Meaningless if
    /// the tool is read-only.
    #[serde(rename = "destructiveHint")]
    pub destructive: bool,
    /// Repeating a call with the same arguments has no additional effect.
    #[serde(rename = "idempotentHint")]
    pub idempotent: bool,
    /// The tool interacts with entities outside the system.
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
    /// The annotations of a read-only, closed-world tool.
    pub fn read_only() -> Self {
        Self {
            read_only: true,
            destructive: false,
            idempotent: true,
            open_world: false,
            ..Self::default()
        }
    }

    /// The annotations of a tool for which repeating a call with the same arguments has no
    /// additional effect.
    pub fn idempotent() -> Self {
        Self {
            idempotent: true,
            ..Self::default()
        }
    }
}

/// The tools of a request; cheap to clone.
#[derive(Clone, Deserialize)]
#[serde(from = "Vec<Arc<ToolSpec>>")]
pub struct ToolSpecs(Arc<List>);

#[derive(Default)]
struct List {
    specs: Vec<Arc<ToolSpec>>,
    // The positions of the names, created when a tool of a long list is first looked up.
    index: OnceLock<HashMap<Str, usize>>,
}

/// Comparing a few names costs less than hashing one.
const FEW: usize = 16;

impl List {
    fn find(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        let index = self.index.get_or_init(|| {
            // A later entry replaces an earlier one.
            let last_first = self.specs.iter().enumerate().rev();
            last_first
                .map(|(at, spec)| (spec.name.clone(), at))
                .collect()
        });
        self.specs.get(*index.get(name)?)
    }
}

impl Clone for List {
    /// Clones the list for a change, without the index.
    fn clone(&self) -> Self {
        self.specs.clone().into()
    }
}

impl From<Vec<Arc<ToolSpec>>> for List {
    fn from(specs: Vec<Arc<ToolSpec>>) -> Self {
        let index = OnceLock::new();
        Self { specs, index }
    }
}

impl From<Vec<Arc<ToolSpec>>> for ToolSpecs {
    fn from(specs: Vec<Arc<ToolSpec>>) -> Self {
        Self(Arc::new(specs.into()))
    }
}

impl Serialize for ToolSpecs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.specs.serialize(serializer)
    }
}

impl PartialEq for ToolSpecs {
    fn eq(&self, other: &Self) -> bool {
        self.0.specs == other.0.specs
    }
}

impl fmt::Debug for ToolSpecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ToolSpecs").field(&self.0.specs).finish()
    }
}

impl Default for ToolSpecs {
    /// Creates an empty list; does not allocate.
    fn default() -> Self {
        static NONE: LazyLock<ToolSpecs> = LazyLock::new(|| ToolSpecs(Arc::default()));
        NONE.clone()
    }
}

impl ToolSpecs {
    /// Creates a list of tools.
    pub fn new(specs: impl IntoIterator<Item = Arc<ToolSpec>>) -> Self {
        specs.into_iter().collect::<Vec<_>>().into()
    }

    /// The tool with this name; the first one if there are several.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        match self.0.specs.as_slice() {
            few if few.len() <= FEW => few.iter().find(|spec| spec.name == *name),
            _ => self.0.find(name),
        }
    }

    /// The tools, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<ToolSpec>> {
        self.0.specs.iter()
    }

    /// Returns whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.0.specs.is_empty()
    }

    /// The number of tools.
    pub fn len(&self) -> usize {
        self.0.specs.len()
    }

    /// Appends a tool.
    pub fn push(&mut self, spec: Arc<ToolSpec>) {
        self.specs_mut().push(spec);
    }

    /// Retains the tools for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&Arc<ToolSpec>) -> bool) {
        self.specs_mut().retain(keep);
    }

    fn specs_mut(&mut self) -> &mut Vec<Arc<ToolSpec>> {
        let list = Arc::make_mut(&mut self.0);
        list.index.take();
        &mut list.specs
    }

    /// Checks that all names are unique.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`]: two tools have the same name.
    pub fn check(&self) -> Result<(), Error> {
        match self.duplicate() {
            None => Ok(()),
            Some(name) => Err(Error::new(
                ErrorKind::Configuration,
                format!("two tools are named `{name}`"),
            )),
        }
    }

    /// The first name that occurs twice.
    pub fn duplicate(&self) -> Option<&Str> {
        let mut seen = HashSet::new();
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

/// The error for a tool of the request that has the same name as a tool of the agent.
///
/// It is the source of an [`ErrorKind::InvalidRequest`] error, because the request must change, not
/// the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolNameTaken {
    /// The name of the tool.
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
            "the agent already has a tool named `{}`; rename the tool of the request",
            self.name
        )
    }
}

impl std::error::Error for ToolNameTaken {}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, description: &str) -> Arc<ToolSpec> {
        Arc::new(ToolSpec::new(name, description, Value::Null))
    }

    #[test]
    fn the_first_tool_with_a_name_is_found() {
        for len in [1, FEW, FEW + 1, 1_000] {
            let mut specs: ToolSpecs = (0..len).map(|n| spec(&n.to_string(), "first")).collect();
            specs.push(spec("0", "second"));
            let found = |specs: &ToolSpecs, name: &str| {
                let found = specs.get(name);
                found.map(|spec| (spec.name.to_string(), spec.description.to_string()))
            };
            for name in ["0", &(len - 1).to_string()] {
                let expected = (name.to_owned(), "first".to_owned());
                assert_eq!(found(&specs, name), Some(expected));
            }
            assert_eq!(found(&specs, "?"), None);

            // A changed list is indexed again, and its clone is not changed.
            let before = specs.clone();
            specs.push(spec("?", "third"));
            specs.retain(|spec| spec.description != "first");
            assert_eq!(
                found(&specs, "0"),
                Some(("0".to_owned(), "second".to_owned()))
            );
            assert!(found(&specs, "?").is_some() && before.get("?").is_none());
            assert_eq!(
                found(&before, "0"),
                Some(("0".to_owned(), "first".to_owned()))
            );
        }
    }
}
