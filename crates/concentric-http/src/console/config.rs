//! The configuration of a console.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use concentric_core::{
    BoxModel, Environment, RunUsage, Str,
    store::{Decisions, RunStore, ThreadStore},
};
use tokio::sync::Semaphore;

use super::access::{Access, Forms};
use crate::{run::Hub, shutdown::Shutdown};

/// What the tokens of some runs cost, as a text; `None` if it is unknown.
pub(super) type Cost = dyn Fn(&RunUsage) -> Option<String> + Send + Sync;

/// Configuration shared by the clones of a service.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) access: Access,
    pub(super) hosts: Vec<Str>,
    /// The path at which the service is mounted, without a slash at its end.
    pub(super) path: Str,
    pub(super) title: Str,
    pub(super) runs: Option<Arc<dyn RunStore>>,
    pub(super) threads: Option<Arc<dyn ThreadStore>>,
    pub(super) decisions: Option<Arc<dyn Decisions>>,
    pub(super) logs: Option<Arc<Hub>>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) agent: Option<BoxModel>,
    pub(super) stacks: Vec<(Str, String)>,
    pub(super) forms: Forms,
    pub(super) environment: Environment,
    pub(super) keep_alive: Option<Duration>,
    pub(super) shutdown: Option<Shutdown>,
    /// The streams that may still be opened.
    pub(super) streams: Arc<Semaphore>,
}

/// Describes times relative to now.
pub(super) fn ago(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

/// A short name of a set of texts, by which a page notices that the set has changed.
pub(super) fn fingerprint<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    let all: BTreeSet<&str> = all.into_iter().collect();
    let all: Vec<&[u8]> = all.into_iter().map(str::as_bytes).collect();
    concentric_core::digest::Digest::of_fields("concentric/console/list/v1", &all).to_string()
}
