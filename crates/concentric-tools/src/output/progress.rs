use concentric_core::{
    BoxError, Context, Str,
    state::{Durable, Scope, Slot, SlotError},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Where a loop stands with its typed answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Progress {
    /// The next calls are for the value.
    pub(super) asked: bool,
    /// How often the model was told that it does not fit.
    pub(super) told: u32,
    /// The loop was given another schema for its answers.
    pub(super) other: bool,
}

impl Progress {
    /// That of the loop that is inside of `depth` model calls, with its answers of `schema`.
    pub(super) fn of(context: &Context, depth: u32, schema: &str) -> Result<Self, SlotError> {
        Ok(context.state::<Loops>()?.progress(depth, schema))
    }

    /// Has it be as this says.
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

/// Where the loops of a run stand: an agent in a model's place has another one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Loops {
    /// By how many model calls the loop is inside of, and the schema's name.
    at: BTreeMap<u32, BTreeMap<Str, Progress>>,
    /// What version 1 has written down, which was of all loops.
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
