//! The change that a run makes to its conversation.

use super::turn::Started;
use concentric_core::{
    Environment, ErrorKind, MessageId, Outcome, RunId, ThreadId, Transcript, Turn as Entry,
    context::Sleep,
    state::{SlotError, Slots, StoredSlot},
    store::{RunClaim, StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore},
};
use std::{
    collections::HashSet,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// The time that the store may take to append a turn.
const STORED_WITHIN: Duration = Duration::from_secs(30);

/// The change that a run makes, without its transcript. It holds no handle to the run.
pub(super) struct Change {
    pub(super) store: Arc<dyn ThreadStore>,
    pub(super) tenant: Tenant,
    pub(super) thread: ThreadId,
    // The conversation when the run was started or resumed.
    pub(super) stored: StoredThread,
    pub(super) base: Started,
    // The transcript of the run at that time.
    pub(super) begun: Transcript,
    // Whether the run was started by an earlier request.
    pub(super) continues: bool,
    pub(super) run: Option<RunId>,
    pub(super) claim: Option<RunClaim>,
    pub(super) outcome: Result<Outcome, ErrorKind>,
    pub(super) slots: Slots,
}

impl Change {
    /// Appends the turn of the run, whose transcript is `transcript`, once `begin` has stored the run, if it does.
    ///
    /// A run that has waited, or was abandoned, follows the turns that other runs have stored meanwhile; any other
    /// one conflicts with them.
    pub(super) fn append(
        mut self,
        transcript: &Transcript,
        begin: Option<StoreFuture<Option<RunClaim>>>,
    ) -> Result<StoreFuture<Appended>, SlotError> {
        let slots = match self.outcome {
            // The state of a run that waits has them.
            Ok(Outcome::Interrupted) => self.stored.slots.clone(),
            _ => self.slots.snapshot()?,
        };
        let transcript = transcript.clone();
        Ok(Box::pin(async move {
            if let Some(begin) = begin {
                self.claim = begin.await?;
            }
            if !self.base.is_apart {
                match self.append_to_base(&transcript, &slots).await {
                    Err(StoreError::Moved { .. }) if self.continues => {}
                    appended => {
                        return appended.map(|version| Appended {
                            version,
                            is_apart: false,
                        });
                    }
                }
            }
            let version = self.append_to_end(&transcript, slots).await?;
            Ok(Appended {
                version,
                is_apart: true,
            })
        }))
    }

    /// Appends to the conversation as the run has left it.
    async fn append_to_base(
        &self,
        transcript: &Transcript,
        slots: &[StoredSlot],
    ) -> Result<u64, StoreError> {
        let Started {
            version, earlier, ..
        } = self.base;
        let mut change = match earlier {
            0 => self.stored.change_to(transcript, slots),
            earlier => {
                let mut all = self.stored.history.prefix(earlier);
                all.extend(transcript.iter().cloned());
                self.stored.change_to(&all, slots)
            }
        };
        change.session = self.stored.session.clone();
        let is_unchanged = self.is_unchanged(&change, &self.stored.history);
        if is_unchanged && self.stored.version == version {
            return Ok(version);
        }
        let outcome = || self.outcome.clone();
        let first = self.send(version, change.clone(), outcome()).await;
        if !self.continues || self.stored.version == version {
            return first;
        }
        // Perhaps the run has appended, and its process died before it could store that. The repetition of that
        // append returns its version, and is not applied.
        let waits = Ok(Outcome::Interrupted);
        let version = match first {
            Ok(version) if self.outcome == waits => version,
            Err(StoreError::Moved { .. }) if self.outcome != waits => {
                self.send(version, change.clone(), waits).await?
            }
            first => return first,
        };
        if is_unchanged {
            return Ok(version);
        }
        self.send(version, change, outcome()).await
    }

    /// Appends the rest of the turn to the conversation as other runs have left it.
    async fn append_to_end(
        &self,
        transcript: &Transcript,
        slots: Vec<StoredSlot>,
    ) -> Result<u64, StoreError> {
        let slots = changed(slots, &self.stored.slots);
        // An attempt fails only after another run has appended its turn.
        loop {
            let loaded = self.store.load(self.tenant.clone(), self.thread.clone());
            let Some(now) = loaded.await? else {
                let expected = self.base.version;
                return Err(StoreError::Moved { expected, found: 0 });
            };
            let mut change = ThreadChange::default();
            change.keep = now.history.len();
            change.turns = self.rest(transcript, &now.history);
            change.slots.clone_from(&slots);
            self.replace(&mut change, transcript, &now.history);
            if self.is_unchanged(&change, &now.history) {
                return Ok(now.version);
            }
            match self.send(now.version, change, self.outcome.clone()).await {
                Err(StoreError::Moved { .. }) => {}
                appended => return appended,
            }
        }
    }

    /// The entries of `transcript` that `history` does not have.
    fn rest(&self, transcript: &Transcript, history: &Transcript) -> Vec<Entry> {
        let (written, known) = (self.base.written, history.turns_after(self.base.earlier));
        let ids: HashSet<&MessageId> = known.iter().filter_map(id).collect();
        // A round that has other outcomes since its process died is replaced in its place. A message without an id
        // may be that of an earlier attempt of the run, which has appended it before its process died.
        let is_known = |own: &Entry| match id(own) {
            Some(id) => ids.contains(id),
            None => self.continues && known.iter().skip(written).any(|known| known == own),
        };
        let pairs = transcript.iter().zip(&known);
        let common = pairs.take_while(|(own, known)| own == known).count();
        let begun = self.begun.prefix(written);
        let mut rest = match common >= written
            || (self.begun.len() >= written && transcript.extends(&begun))
        {
            true => transcript.turns_after(common.max(written)),
            // The run has rewritten its transcript, so positions in it have changed.
            false => {
                let own = transcript.rev();
                let new = own.take_while(|own| !is_known(own) && !known.contains(own));
                transcript.turns_after(transcript.len() - new.count())
            }
        };
        rest.retain(|own| !is_known(own));
        rest
    }

    /// Replaces the rounds that an earlier attempt of the run has appended before its process died, and that had
    /// other outcomes since.
    fn replace(&self, change: &mut ThreadChange, transcript: &Transcript, history: &Transcript) {
        if !transcript.extends(&self.begun) {
            return;
        }
        let own = transcript.turns_after(self.begun.len());
        let of = |known: &Entry| {
            own.iter()
                .find(|own| id(own).is_some() && id(own) == id(known))
        };
        let known = history.turns_after(self.base.earlier);
        let is_replaced = |known: &Entry| of(known).is_some_and(|own| own != known);
        if let Some(first) = known.iter().position(is_replaced) {
            change.keep = history.len() - known.len() + first;
            let later = known.iter().skip(first);
            let later = later.map(|known| of(known).unwrap_or(known).clone());
            let rest = std::mem::take(&mut change.turns);
            change.turns = later.chain(rest).collect();
        }
    }

    /// Whether a run that waits has nothing to append: another version would be a conflict for other runs.
    fn is_unchanged(&self, change: &ThreadChange, history: &Transcript) -> bool {
        self.outcome == Ok(Outcome::Interrupted)
            && change.turns.is_empty()
            && change.keep == history.len()
    }

    fn send(
        &self,
        version: u64,
        mut change: ThreadChange,
        outcome: Result<Outcome, ErrorKind>,
    ) -> StoreFuture<u64> {
        let is_interrupted = outcome == Ok(Outcome::Interrupted);
        change.id = self.run.as_ref().map(|run| match is_interrupted {
            // A run may be interrupted several times.
            true => format!("{run}/{version}").into(),
            false => run.as_str().into(),
        });
        change.ends = self.claim.clone().map(|claim| (claim, outcome));
        let (tenant, thread) = (self.tenant.clone(), self.thread.clone());
        self.store.append(tenant, thread, version, change)
    }
}

fn id(turn: &Entry) -> Option<&MessageId> {
    turn.as_message().id.as_ref()
}

/// Those of `slots` that `stored` does not have with the same value.
pub(super) fn changed(mut slots: Vec<StoredSlot>, stored: &[StoredSlot]) -> Vec<StoredSlot> {
    slots.retain(|slot| !stored.contains(slot));
    slots
}

/// A stored turn.
#[derive(Clone, Copy)]
pub(super) struct Appended {
    pub(super) version: u64,
    // Whether turns of other runs are among those of the run.
    pub(super) is_apart: bool,
}

/// A turn that is being stored.
pub(super) struct Saving {
    work: StoreFuture<Appended>,
    limit: Sleep,
}

impl Saving {
    pub(super) fn new(work: StoreFuture<Appended>, environment: &Environment) -> Self {
        let limit = environment.clock().sleep(STORED_WITHIN);
        Self { work, limit }
    }

    /// Waits until the turn is stored.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Appended, StoreError>> {
        if let Poll::Ready(stored) = Pin::new(&mut self.work).poll(cx) {
            return Poll::Ready(stored);
        }
        self.limit.as_mut().poll(cx).map(|()| {
            let why = "the store did not append the turn within 30 seconds";
            Err(StoreError::failed(why))
        })
    }

    /// Continues without the limit.
    pub(super) fn finish(self) -> StoreFuture<Appended> {
        self.work
    }
}
