//! The state of a layer in a run.

use concentric_core::{Transcript, Turn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A value for each loop of a run: an agent in the model's place has the same run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ByDepth<T>(BTreeMap<u32, T>);

impl<T> Default for ByDepth<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> ByDepth<T> {
    pub(crate) fn get(&self, depth: u32) -> Option<&T> {
        self.0.get(&depth)
    }

    /// Returns a copy with `value` at `depth`.
    pub(crate) fn with(&self, depth: u32, value: &T) -> Self {
        let mut all = self.0.clone();
        all.insert(depth, value.clone());
        Self(all)
    }
}

/// The sum of the weights of a conversation's turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    of: Transcript,
    pub(crate) sum: u64,
}

impl Total {
    /// The sum for `transcript`. Only the turns that this sum lacks are weighed.
    pub(crate) fn of(&self, transcript: &Transcript, weigh: impl Fn(&Turn) -> u64) -> Self {
        let (known, sum) = match transcript.extends(&self.of) {
            true => (self.of.len(), self.sum),
            false => (0, 0),
        };
        let new = transcript.rev().take(transcript.len() - known);
        Self {
            of: transcript.clone(),
            sum: sum + new.map(weigh).sum::<u64>(),
        }
    }

    /// The known sum of `of`.
    pub(crate) fn new(of: &Transcript, sum: u64) -> Self {
        let of = of.clone();
        Self { of, sum }
    }
}

/// The view that a layer sent in place of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memo {
    of: Transcript,
    view: Transcript,
}

impl Memo {
    pub(crate) fn new(of: &Transcript, view: &Transcript) -> Self {
        Self {
            of: of.clone(),
            view: view.clone(),
        }
    }

    /// Another view of the same conversation.
    pub(crate) fn changed(&self, view: &Transcript) -> Self {
        Self::new(&self.of, view)
    }

    pub(crate) const fn view(&self) -> &Transcript {
        &self.view
    }

    /// The view of `transcript`, if it continues the conversation: its new turns are appended.
    pub(crate) fn extended(&self, transcript: &Transcript) -> Option<Transcript> {
        if self.of.is_empty() || !transcript.extends(&self.of) {
            return None;
        }
        if same(&self.of, &self.view) {
            return Some(transcript.clone());
        }
        let mut view = self.view.clone();
        let new: Vec<&Turn> = transcript
            .rev()
            .take(transcript.len() - self.of.len())
            .collect();
        view.extend(new.into_iter().rev().cloned());
        Some(view)
    }
}

/// Whether two conversations are one.
pub(crate) fn same(one: &Transcript, other: &Transcript) -> bool {
    one.len() == other.len() && one.extends(other)
}
