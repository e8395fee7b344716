//! One run of a conversation: its base, and the turn that it stores.

use super::{
    change::{Appended, Change, Saving, changed},
    layer::{Merge, NO_THREAD, Settings, UNKNOWN_THREAD},
};
use crate::turn::{TurnOfRun, failed};
use concentric_core::{
    ChatRequest, Context as RunContext, Error, ErrorKind, Finish, Outcome, Role, RunId,
    SideEffects, ThreadId, Transcript, Turn as Entry,
    context::ClosedTranscript,
    state::{Durable, Scope, Slot, SlotError, SlotPlace, Slots, StoredSlot},
    store::{Regenerate, RunClaim, RunKey, StoreError, StoreFuture, StoredThread, Tenant},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tower::BoxError;

/// The base of a run, in the run's own state.
struct Base;

impl Slot for Base {
    type Value = Option<Started>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/conversation";
    const SCOPE: Scope = Scope::Run;
    /// A release that knows version 1 only would take `slots` for all slots, and delete the others.
    const VERSION: u32 = 2;

    fn migrate(_: u32, value: Value) -> Result<Self::Value, BoxError> {
        let mut started: Self::Value = serde_json::from_value(value)?;
        if let Some(started) = &mut started {
            started.has_all_slots = true;
        }
        Ok(started)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Started {
    /// The version of the conversation when the run has loaded it, or appended to it.
    pub(super) version: u64,
    /// The number of its entries that precede the transcript of the run.
    #[serde(default)]
    pub(super) earlier: usize,
    /// The number of leading entries of that transcript that it had then.
    #[serde(default)]
    pub(super) written: usize,
    /// Whether turns of other runs are among those of the run.
    #[serde(default)]
    pub(super) is_apart: bool,
    /// The conversation's slots that a suspended run has changed; `None` before it is suspended.
    slots: Option<Vec<StoredSlot>>,
    /// Whether `slots` has those that the run has not changed, as in version 1.
    #[serde(skip)]
    has_all_slots: bool,
}

/// One run of a conversation.
pub(super) struct Turn {
    settings: Settings,
    context: RunContext,
    tenant: Tenant,
    thread: ThreadId,
    // The number of the run's effects before it was called.
    effects: u64,
    is_resumed: bool,
    // Whether the run has begun in an earlier request, with a base in its state.
    continues: bool,
    // The transcript with which the run begins or resumes.
    begun: Transcript,
    closed: ClosedTranscript,
    stored: StoredThread,
    slots: Slots,
}

/// The history up to the last message of `new` by the user, in place of the stored one; `None` if it is not stored.
fn replaced(history: &Transcript, new: &Transcript) -> Option<Transcript> {
    let asked = new.last()?;
    let message = asked.as_message();
    if message.role != Role::User {
        return None;
    }
    let is_same = |turn: &Entry| match &message.id {
        Some(id) => turn.as_message().id.as_ref() == Some(id),
        None => turn == asked,
    };
    let is_asked = |turn: &Entry| turn.as_message().role == Role::User && is_same(turn);
    let after = history.rev().position(is_asked)?;
    let mut replaced = history.prefix(history.len() - after - 1);
    replaced.push(asked.clone());
    Some(replaced)
}

/// The turns up to the last message of the user or round.
fn without_answer(turns: &Transcript) -> Transcript {
    let is_answer =
        |turn: &&Entry| turn.as_round().is_none() && turn.as_message().role == Role::Assistant;
    let answers = turns.rev().take_while(is_answer).count();
    turns.prefix(turns.len() - answers)
}

fn warn(thread: &ThreadId, run: &RunId, error: &Error) {
    tracing::warn!(
        target: "concentric::conversation",
        %thread, %run, %error, "the turn of a run was not stored"
    );
}

impl Turn {
    pub(super) fn new(settings: &Settings, context: &RunContext) -> Result<Self, Error> {
        let Some(thread) = context.thread_id().cloned() else {
            let why = "a run of a conversation requires a thread id in its context";
            return Err(Error::new(ErrorKind::Configuration, why).with_code(NO_THREAD));
        };
        Ok(Self {
            settings: settings.clone(),
            context: context.clone(),
            tenant: Tenant::of(context),
            thread,
            effects: context.effect_count(),
            is_resumed: false,
            continues: false,
            begun: Transcript::new(),
            closed: context.keep_closed_transcript(),
            stored: StoredThread::default(),
            slots: Slots::new(),
        })
    }

    pub(super) fn load(&self) -> StoreFuture<Option<StoredThread>> {
        let store = &self.settings.store;
        store.load(self.tenant.clone(), self.thread.clone())
    }

    /// Prepares the request of a run with the loaded conversation.
    pub(super) fn start(
        &mut self,
        loaded: Option<StoredThread>,
        request: &mut ChatRequest,
    ) -> Result<(), Error> {
        if loaded.is_none() && !self.settings.creates {
            let why = format!("the conversation `{}` does not exist", self.thread);
            return Err(Error::new(ErrorKind::NotFound, why).with_code(UNKNOWN_THREAD));
        }
        let exists = loaded.is_some();
        self.stored = loaded.unwrap_or_default();
        self.is_resumed = request.resume.is_some();
        // An earlier attempt of a new run may have left its base.
        let started = match request.resume {
            Some(_) => self.started()?,
            None => None,
        };
        self.continues = started.is_some();
        if let Some(Started {
            version: expected @ 1..,
            ..
        }) = started
            && !exists
        {
            // Before the run has effects: it must not create a conversation again that was deleted.
            return Err(StoreError::Moved { expected, found: 0 }.into());
        }
        let mut changed = started.as_ref().and_then(|started| started.slots.clone());
        if let (Some(changed), Some(started)) = (&mut changed, &started)
            && started.has_all_slots
            && started.version != self.stored.version
        {
            // Perhaps another run has changed them, and this one has not.
            let is_stored = |slot: &StoredSlot| {
                let mut stored = self.stored.slots.iter();
                stored.any(|it| it.slot == slot.slot && it.place == slot.place)
            };
            changed.retain(|slot| !is_stored(slot));
        }
        let stored = self.stored.slots.iter().cloned();
        self.slots = Slots::restore(stored.chain(changed.unwrap_or_default()));
        let visible = self.visible();
        if request.resume.is_none() {
            request.transcript = self.merged(visible.clone(), &request.transcript);
        }
        self.begun = request.transcript.clone();
        if started.is_none() {
            let start = self.initial(&visible);
            self.context
                .update_state::<Base>(|_| Some(start.clone()))
                .map_err(Error::from)?;
        }
        let session = self.stored.session.as_ref().unwrap_or(&self.thread);
        request.context.set_session_id(session.clone());
        request.context.set_thread_slots(self.slots.clone());
        Ok(())
    }

    /// The number of stored entries with which a new run does not start.
    fn earlier(&self) -> usize {
        let history = &self.stored.history;
        let Some(turns) = self.settings.max_turns else {
            return 0;
        };
        if self.settings.merge == Merge::ClientOverwrites {
            return 0;
        }
        let is_user = |(_, turn): &(usize, &Entry)| turn.as_message().role == Role::User;
        let mut starts = history.rev().enumerate().filter(is_user);
        match turns.checked_sub(1) {
            None => history.len(),
            Some(before) => starts
                .nth(before)
                .map_or(0, |(at, _)| history.len() - at - 1),
        }
    }

    /// The stored entries with which a new run starts.
    fn visible(&self) -> Transcript {
        let history = &self.stored.history;
        match self.earlier() {
            // Shares the stored turns, so that neither a store nor a change compares them by value.
            0 => history.clone(),
            earlier => history.turns_after(earlier).into_iter().collect(),
        }
    }

    fn merged(&self, mut merged: Transcript, new: &Transcript) -> Transcript {
        match self.settings.merge {
            Merge::ClientOverwrites => return new.clone(),
            _ if self.context.extensions().get::<Regenerate>().is_some()
                && let Some(replaced) = replaced(&merged, new) =>
            {
                return replaced;
            }
            Merge::Append => merged.extend(new.iter().cloned()),
            Merge::ServerWins => merged.extend(self.unseen(new).into_iter().cloned()),
        }
        merged
    }

    /// The user messages at the end of `new` that the conversation does not have. A client that keeps the messages
    /// of failed runs sends them again.
    fn unseen<'a>(&self, new: &'a Transcript) -> Vec<&'a Entry> {
        let history = &self.stored.history;
        let is_user = |turn: &&Entry| turn.as_message().role == Role::User;
        let is_known = |turn: &Entry| match turn.as_message().id {
            Some(_) => history.iter().any(|stored| stored == turn),
            // The same text may be another message, unless nothing has followed the first.
            None => history.rev().take_while(is_user).any(|it| it == turn),
        };
        let mut trailing = new.rev().take_while(is_user);
        // The model answers the last message, unless it already waits for an answer.
        let last = trailing.next().filter(|turn| history.last() != Some(*turn));
        let earlier = trailing.filter(|turn| !is_known(turn));
        let mut turns: Vec<&Entry> = last.into_iter().chain(earlier).collect();
        turns.reverse();
        turns
    }

    /// Returns the base of the run. A layer inside this one may have restored it since the call.
    fn started(&self) -> Result<Option<Started>, SlotError> {
        self.context
            .state::<Base>()
            .map(|started| (*started).clone())
    }

    /// The base of the run, also if a layer inside has removed it.
    fn base(&self) -> Result<Started, SlotError> {
        let started = self.started()?;
        Ok(started.unwrap_or_else(|| self.initial(&self.visible())))
    }

    /// The base of a run that starts with the stored entries `visible`.
    fn initial(&self, visible: &Transcript) -> Started {
        Started {
            version: self.stored.version,
            earlier: self.earlier(),
            written: self.begun.common_len(visible),
            is_apart: false,
            slots: None,
            has_all_slots: false,
        }
    }

    /// Starts to store the result of the run; `None` if there is nothing to store.
    pub(super) fn finish(&self, finish: &mut Finish) -> Result<Option<Saving>, Error> {
        if finish.outcome == Outcome::Interrupted {
            return self.interrupt(finish);
        }
        match &finish.transcript {
            Some(transcript) if self.settings.is_lazy => {
                let work = self
                    .change(Ok(finish.outcome.clone()))?
                    .append(transcript, TurnOfRun::pending(&self.context))?;
                self.store_later(async move {
                    work.await?;
                    Ok(())
                });
                Ok(None)
            }
            Some(transcript) => self.save(transcript, Ok(finish.outcome.clone())).map(Some),
            // Without a loop, there are no turns. A layer inside may have replaced the end of one, such as a guard that
            // blocks the answer, which is then not stored.
            None => match self.closed.get().filter(|_| self.is_over()) {
                Some(turns) => self
                    .save(&without_answer(&turns), Ok(finish.outcome.clone()))
                    .map(Some),
                None => Ok(None),
            },
        }
    }

    /// Starts to store the message of the user and the closed rounds of a run that waits from now on; `None` if the
    /// conversation has them.
    fn interrupt(&self, finish: &mut Finish) -> Result<Option<Saving>, Error> {
        // Without the version, in case that the turn can't be stored.
        self.suspend(finish, None)?;
        let closed = closed(finish).filter(|_| !TurnOfRun::is_elsewhere(&self.context));
        let Some(closed) = closed else {
            return Ok(None);
        };
        // Another version would be a conflict for the other runs of the conversation.
        if closed.len() <= self.base()?.written && self.begun.extends(&closed) {
            return Ok(None);
        }
        let state = finish.state.as_deref().cloned();
        let begin = state.and_then(|state| TurnOfRun::begin(&self.context, state));
        let begin =
            begin.map(|begin| -> StoreFuture<_> { Box::pin(async { begin.await.map(Some) }) });
        let work = self
            .change(Ok(Outcome::Interrupted))?
            .append(&closed, begin)?;
        Ok(Some(Saving::new(work, self.context.environment())))
    }

    /// Starts to store the turns so far of a run that has failed, or was truncated without an error; `None` if
    /// there is nothing to store.
    pub(super) fn give_up(&self, error: Option<&Error>) -> Result<Option<Saving>, Error> {
        let outcome = match error {
            Some(_) => failed(&self.context, error),
            None => Err(ErrorKind::Truncated),
        };
        match self.closed.get().filter(|_| self.is_over()) {
            Some(transcript) => self.save(&transcript, outcome).map(Some),
            None => Ok(None),
        }
    }

    /// Returns whether a run that did not finish can't be resumed. A resumed run without new effects waits again,
    /// with its turn in its own state; a run of another process continues there.
    fn is_over(&self) -> bool {
        !TurnOfRun::is_elsewhere(&self.context)
            && (!self.is_resumed || self.context.effect_count() != self.effects)
    }

    /// The change of a run that ends, or waits, with this outcome.
    fn change(&self, outcome: Result<Outcome, ErrorKind>) -> Result<Change, SlotError> {
        Ok(Change {
            store: Arc::clone(&self.settings.store),
            tenant: self.tenant.clone(),
            thread: self.thread.clone(),
            stored: self.stored.clone(),
            base: self.base()?,
            begun: self.begun.clone(),
            continues: self.continues,
            // A stored run may be resumed after its turn was appended. The key of its storage is unique,
            // unlike the id that a client has chosen.
            run: RunKey::of(&self.context).map(|key| key.run),
            // Another process may have taken the run over.
            claim: RunClaim::of(&self.context),
            outcome,
            slots: self.slots.clone(),
        })
    }

    fn save(
        &self,
        transcript: &Transcript,
        outcome: Result<Outcome, ErrorKind>,
    ) -> Result<Saving, Error> {
        let pending = TurnOfRun::pending(&self.context);
        let work = self.change(outcome)?.append(transcript, pending)?;
        Ok(Saving::new(work, self.context.environment()))
    }

    /// Stores the turns so far of a run whose body is dropped, once the agent inside is dropped as well.
    pub(super) fn defer(&self) {
        // A request that a layer outside has not accepted leaves nothing.
        if !self.is_over() || self.context.has_held_effects() {
            return;
        }
        let change = self.change(failed(&self.context, None));
        let (closed, pending) = (self.closed.clone(), TurnOfRun::pending(&self.context));
        self.store_later(async move {
            if let Some(transcript) = closed.get() {
                change?.append(&transcript, pending)?.await?;
            }
            Ok(())
        });
    }

    /// Continues to store a turn whose body is dropped.
    pub(super) fn save_later(&self, saving: Saving) {
        self.store_later(async move {
            saving.finish().await?;
            Ok(())
        });
    }

    /// Stores a turn after the run.
    fn store_later(&self, work: impl Future<Output = Result<(), Error>> + Send + 'static) {
        let (thread, run) = (self.thread.clone(), self.context.run_id().clone());
        self.context.defer(async move {
            if let Err(error) = work.await {
                warn(&thread, &run, &error);
            }
        });
    }

    /// Lets the layer that stores the run keep it, if it fails, so that it can be resumed and store its turn.
    pub(super) fn report_unstored(&self) {
        TurnOfRun::report_unstored(&self.context);
    }

    /// Logs that the turn could not be stored.
    pub(super) fn warn(&self, error: &Error) {
        warn(&self.thread, self.context.run_id(), error);
    }

    /// Adds the base of a suspended run to its state: the slots of the conversation that it has changed, and the
    /// result if its turn was `appended`.
    pub(super) fn suspend(
        &self,
        finish: &mut Finish,
        appended: Option<Appended>,
    ) -> Result<(), Error> {
        if finish.state.is_none() {
            return Ok(());
        }
        let mut started = self.base()?;
        started.slots = Some(changed(self.slots.snapshot()?, &self.stored.slots));
        if let (Some(appended), Some(closed)) = (appended, closed(finish)) {
            started.version = appended.version;
            started.written = closed.len();
            started.is_apart = appended.is_apart;
        }
        let value = serde_json::to_value(Some(started));
        let value = value.map_err(|error| {
            Error::new(ErrorKind::Other, "can't serialize the conversation's slots")
                .with_source(error)
        })?;
        // Taken only now: without the slots, the run can still be resumed.
        let Some(mut state) = finish.state.take() else {
            return Ok(());
        };
        let mut all = state.take_slots();
        all.retain(|slot| slot.slot != Base::NAME);
        all.push(StoredSlot::new(
            Base::NAME,
            Base::VERSION,
            value,
            SlotPlace::Whole,
        ));
        finish.state = Some(Box::new(state.with_slots(all)));
        Ok(())
    }

    /// Returns the error in place of a finish whose turn could not be stored, if the run must fail.
    pub(super) fn refuse(&self, error: Error, finish: &Finish) -> Option<Error> {
        let is_moved = error.kind() == ErrorKind::Conflict;
        // When it is resumed, a run that waits stores its turn.
        let is_later = error.kind() == ErrorKind::Server && is_interrupted(finish);
        if !is_moved && (is_later || !self.settings.is_required) {
            self.warn(&error);
            return None;
        }
        let effects = match self.context.effect_count() == self.effects {
            true => error.effects(),
            false => error.effects().max(SideEffects::Possible),
        };
        Some(error.with_effects(effects))
    }
}

pub(super) fn is_interrupted(finish: &Finish) -> bool {
    finish.outcome == Outcome::Interrupted
}

/// The transcript of a run that waits, without an answer at its end, which may still be rejected.
fn closed(finish: &Finish) -> Option<Transcript> {
    let transcript = finish.state.as_ref()?.transcript();
    let is_answer =
        |turn: &&Entry| turn.as_round().is_none() && turn.as_message().role == Role::Assistant;
    let answers = transcript.rev().take_while(is_answer).count();
    Some(transcript.prefix(transcript.len() - answers))
}
