//! The view of a layer that changes the older turns of a conversation.

use super::{Memo, Total, fingerprint};
use concentric_core::{Transcript, Turn};
use serde::{Deserialize, Serialize};

/// The end of the turns that a layer has changed, as a run keeps it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mark {
    end: usize,
    // Of the turn before the end.
    fingerprint: u64,
}

impl Mark {
    pub(crate) fn new(of: &Transcript, end: usize) -> Self {
        let last = of.prefix(end);
        let fingerprint = last.last().map(fingerprint).unwrap_or_default();
        Self { end, fingerprint }
    }

    /// The end in `of`; 0 if it is that of another conversation.
    pub(crate) fn end(&self, of: &Transcript) -> usize {
        let before = of.prefix(self.end);
        let is_same = |turn: &Turn| fingerprint(turn) == self.fingerprint;
        match before.len() == self.end && before.last().is_some_and(is_same) {
            true => self.end,
            false => 0,
        }
    }
}

/// The turns in which a layer found too little to change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Searched {
    pub(crate) end: usize,
    /// What a change of them would reclaim.
    pub(crate) reclaimed: u64,
}

/// The view that was sent in a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    memo: Memo,
    total: Total,
    /// The end of the changed turns.
    pub(crate) end: usize,
    /// The turns that were searched for changes.
    pub(crate) searched: Searched,
    /// Whether the request exceeds the limit nevertheless.
    pub(crate) is_over: bool,
}

impl Step {
    /// The step that sends `view`, whose turns before `end` are changed.
    pub(crate) fn new(
        of: &Transcript,
        view: &Transcript,
        end: usize,
        weigh: impl Fn(&Turn) -> u64,
    ) -> Self {
        Self {
            memo: Memo::new(of, view),
            total: Total::default().of(view, weigh),
            end,
            searched: Searched::default(),
            is_over: false,
        }
    }

    /// The step that sends `view` for the same conversation, with the turns before the new `end` changed; `sum` is that
    /// of the weights of its turns.
    pub(crate) fn changed(&self, view: &Transcript, sum: u64, end: usize) -> Self {
        Self {
            memo: self.memo.changed(view),
            total: Total::new(view, sum),
            end,
            searched: Searched { end, reclaimed: 0 },
            is_over: false,
        }
    }

    /// The next step of the same conversation, with its new turns.
    pub(crate) fn extended(&self, of: &Transcript, weigh: impl Fn(&Turn) -> u64) -> Option<Self> {
        let view = self.memo.extended(of)?;
        Some(Self {
            total: self.total.of(&view, weigh),
            memo: Memo::new(of, &view),
            ..*self
        })
    }

    pub(crate) const fn view(&self) -> &Transcript {
        self.memo.view()
    }

    /// The sum of the weights of the view's turns.
    pub(crate) const fn sum(&self) -> u64 {
        self.total.sum
    }
}
