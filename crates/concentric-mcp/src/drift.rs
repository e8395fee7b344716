//! Changes of the definitions of a server's tools.

use crate::listing::Definitions;
use concentric_core::ToolSpec;
use std::sync::Arc;

/// A difference between the accepted definitions of a server's tools and its current ones.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Drift {
    /// A tool is new.
    Added(Arc<ToolSpec>),
    /// The definition of a tool has changed.
    Changed {
        /// The accepted definition.
        accepted: Arc<ToolSpec>,
        /// The current definition.
        current: Arc<ToolSpec>,
    },
    /// The server no longer offers a tool.
    Removed(Arc<ToolSpec>),
}

/// The differences between two lists, by the names of the tools.
pub(crate) fn drift(accepted: &Definitions, current: &Definitions) -> Vec<Drift> {
    let gone = accepted.iter().filter_map(|(name, old)| {
        let accepted = Arc::clone(&old.spec);
        match current.get(name) {
            None => Some((name, Drift::Removed(accepted))),
            Some(new) if new != old => {
                let current = Arc::clone(&new.spec);
                Some((name, Drift::Changed { accepted, current }))
            }
            Some(_) => None,
        }
    });
    let new = current
        .iter()
        .filter(|(name, _)| !accepted.contains_key(*name));
    let new = new.map(|(name, new)| (name, Drift::Added(Arc::clone(&new.spec))));
    let mut all: Vec<_> = gone.chain(new).collect();
    all.sort_unstable_by_key(|(name, _)| (*name).clone());
    all.into_iter().map(|(_, drift)| drift).collect()
}
