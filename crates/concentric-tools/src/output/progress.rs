use concentric_core::{
    BoxError, Context, Str,
    state::{Durable, Scope, Slot, SlotError, Transient},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The progress of a loop with its typed answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Progress {
    /// Whether the value has been requested.
    pub(super) asked: bool,
    /// The number of rejected answers.
    pub(super) told: u32,
    /// Whether the request of the loop has another schema.
    pub(super) other: bool,
}

impl Progress {
    /// Reads the progress of the loop at nesting depth `depth` with the schema named `schema`.
    pub(super) fn of(context: &Context, depth: u32, schema: &str) -> Result<Self, SlotError> {
        Ok(context.state::<Loops>()?.progress(depth, schema))
    }

    /// Stores the progress of that loop.
    pub(super) fn note(self, context: &Context, depth: u32, schema: &Str) -> Result<(), SlotError> {
        context.update_state::<Loops>(|loops| {
            let mut loops = loops.clone();
            let of_loop = loops.at.entry(depth).or_default();
            of_loop.insert(schema.clone(), self);
            loops
        })?;
        Ok(())
    }
}

/// The progress of the loops of a run: nested agents each have one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Loops {
    /// By nesting depth and schema name.
    at: BTreeMap<u32, BTreeMap<Str, Progress>>,
    /// The state of version 1, which was shared by all loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_all: Option<Progress>,
}

impl Loops {
    fn progress(&self, depth: u32, schema: &str) -> Progress {
        let own = self.at.get(&depth).and_then(|at| at.get(schema));
        own.copied().or(self.of_all).unwrap_or_default()
    }
}

impl Slot for Loops {
    type Value = Self;
    type Keep = Durable;
    const NAME: &'static str = "concentric/output";
    const SCOPE: Scope = Scope::Run;
    const VERSION: u32 = 2;

    fn migrate(version: u32, value: Value) -> Result<Self, BoxError> {
        match version {
            1 => Ok(Self {
                of_all: Some(serde_json::from_value(value)?),
                ..Self::default()
            }),
            _ => Err(format!("there is no way from version {version} to 2").into()),
        }
    }
}

/// The name of the schema that the answer of the newest model call is to match.
pub(super) struct Current;

impl Slot for Current {
    type Value = Option<Str>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/output-schema";
    const SCOPE: Scope = Scope::Run;
}

impl Current {
    pub(super) fn of(context: &Context) -> Result<Option<Str>, SlotError> {
        Ok((*context.state::<Self>()?).clone())
    }

    pub(super) fn note(context: &Context, schema: Option<&Str>) -> Result<(), SlotError> {
        if Self::of(context)?.as_ref() != schema {
            context.update_state::<Self>(|_| schema.cloned())?;
        }
        Ok(())
    }
}
