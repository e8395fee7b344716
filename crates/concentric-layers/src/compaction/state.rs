//! The state of compactions: of a thread, of a run, and of a step.

use super::NAME;
use crate::window::{ByDepth, Memo, Total, note};
use concentric_core::{
    Context, Str, Transcript, Turn,
    digest::Digest,
    state::{Durable, Scope, Slot, SlotError, Transient},
};
use serde::{Deserialize, Serialize};

/// The summary of a conversation.
struct OfThread;

impl Slot for OfThread {
    type Value = Option<Summary>;
    type Keep = Durable;
    const NAME: &'static str = NAME;
    const SCOPE: Scope = Scope::Thread;
}

/// The summary of the conversation of a nested run, which is not that of the thread.
struct OfNested;

impl Slot for OfNested {
    type Value = Option<Summary>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/compaction/nested";
    const SCOPE: Scope = Scope::Run;
}

/// Whether a compaction was requested.
struct Requested;

impl Slot for Requested {
    type Value = bool;
    type Keep = Durable;
    const NAME: &'static str = "concentric/compaction/requested";
    const SCOPE: Scope = Scope::Run;
}

/// What was sent in the last step.
pub(super) struct Steps;

impl Slot for Steps {
    type Value = ByDepth<Step>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/compaction/step";
    const SCOPE: Scope = Scope::Run;
}

#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) memo: Memo,
    // Of the view.
    pub(super) total: Total,
    pub(super) cut: Cut,
    // The summary that applies to the conversation.
    pub(super) summary: Option<Summary>,
    // Attempts since the last compaction that were skipped or failed.
    pub(super) failures: i32,
}

/// A summary and the turns that it covers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) cut: Cut,
    // Of the turns before the end of the cut.
    pub(super) digest: Digest,
}

/// The turns before `end` are replaced by the summary, except the first `head` turns and `messages`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cut {
    pub(super) end: usize,
    pub(super) head: usize,
    // The messages of the user that are kept, of the exchange in which the cut is, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) messages: Vec<usize>,
    // `None` if the turns are left out.
    pub(super) text: Option<Str>,
}

impl Cut {
    /// Whether the turn at `index` is sent.
    pub(super) fn keeps(&self, index: usize) -> bool {
        index < self.head || index >= self.end || self.messages.binary_search(&index).is_ok()
    }

    /// The message with the summary.
    pub(super) fn turn(&self) -> Option<Turn> {
        let text = self.text.as_ref()?;
        let text = format!("Summary of the conversation so far:\n\n{text}");
        Some(note(NAME, text))
    }

    /// The view of a conversation.
    pub(super) fn view(&self, of: &Transcript) -> Transcript {
        if self.end == 0 {
            return of.clone();
        }
        let mut view = Transcript::new();
        for (index, turn) in of.iter().enumerate() {
            if index == self.head {
                view.extend(self.turn());
            }
            if self.keeps(index) {
                view.push(turn.clone());
            }
        }
        view
    }
}

impl Summary {
    /// Reads the summary of the context's conversation.
    pub(super) fn read(context: &Context) -> Option<Self> {
        // A slot that can't be read is set again.
        let summary = match context.parent() {
            None => context.state::<OfThread>(),
            Some(_) => context.state::<OfNested>(),
        };
        (*summary.ok()?).clone()
    }

    pub(super) fn write(&self, context: &Context) {
        let written = match context.parent() {
            None => context.update_state::<OfThread>(|_| Some(self.clone())),
            Some(_) => context.update_state::<OfNested>(|_| Some(self.clone())),
        };
        if let Err(error) = written {
            tracing::warn!(target: "concentric::compaction", %error, "the summary can't be stored");
        }
    }

    /// Whether it covers the first turns of `of`.
    pub(super) fn is_of(&self, of: &Transcript) -> bool {
        let covered = of.prefix(self.cut.end);
        covered.len() == self.cut.end && digest(&covered, 0, None) == Some(self.digest)
    }
}

/// The digest of a conversation, whose first `known` turns have the digest `before`: of each turn with the
/// digest of those before it.
pub(super) fn digest(of: &Transcript, known: usize, before: Option<Digest>) -> Option<Digest> {
    let mut digest = before.unwrap_or(Digest::from_bytes([0; 32]));
    for turn in of.iter().skip(known) {
        let turn = serde_json::to_vec(turn).ok()?;
        digest = Digest::of_fields(NAME, &[digest.as_bytes(), &turn]);
    }
    Some(digest)
}

/// Requests a compaction before the next model call of the context's run, such as from a tool or from a
/// command of the user.
///
/// # Errors
///
/// The state of the run can't be written.
pub fn request(context: &Context) -> Result<(), SlotError> {
    context.update_state::<Requested>(|_| true).map(drop)
}

/// Whether a compaction was requested. Forgets the request.
pub(super) fn take_request(context: &Context) -> bool {
    let is_requested = context.state::<Requested>().is_ok_and(|it| *it);
    if is_requested {
        let _ = context.update_state::<Requested>(|_| false);
    }
    is_requested
}
