//! One run of a conversation: its base, and the turn that it stores.

use super::layer::{Merge, NO_THREAD, Settings, UNKNOWN_THREAD};
use crate::turn::{TurnOfRun, failed};
use concentric_core::{
    ChatRequest, Context as RunContext, Error, ErrorKind, Finish, Outcome, Role, RunId,
    SideEffects, Str, ThreadId, Transcript, Turn as Entry,
    context::{ClosedTranscript, Sleep},
    state::{Durable, Scope, Slot, SlotError, SlotPlace, Slots, StoredSlot},
    store::{
        Regenerate, RunClaim, RunKey, StoreError, StoreFuture, StoredThread, Tenant, ThreadStore,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// The time that the store may take to append a turn.
const STORED_WITHIN: Duration = Duration::from_secs(30);

/// The base of a run, in the run's own state.
struct Base;

impl Slot for Base {
    type Value = Option<Started>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/conversation";
    const SCOPE: Scope = Scope::Run;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Started {
    /// The version of the conversation.
    version: u64,
    /// The number of its entries that precede the transcript of the run.
    #[serde(default)]
    earlier: usize,
    /// The conversation's slots as a suspended run has left them; `None` before it is suspended.
    slots: Option<Vec<StoredSlot>>,
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
    closed: ClosedTranscript,
    stored: StoredThread,
    slots: Slots,
}

/// The change that a turn makes, without the transcript. It holds no handle to the run.
struct Change {
    store: Arc<dyn ThreadStore>,
    tenant: Tenant,
    thread: ThreadId,
    stored: StoredThread,
    version: u64,
    earlier: usize,
    id: Option<Str>,
    ends: Option<(RunClaim, Result<Outcome, ErrorKind>)>,
    slots: Slots,
}

impl Change {
    fn append(self, transcript: &Transcript) -> Result<StoreFuture<u64>, SlotError> {
        let slots = self.slots.snapshot()?;
        let mut change = match self.earlier {
            0 => self.stored.change_to(transcript, &slots),
            earlier => {
                let mut all = self.stored.history.prefix(earlier);
                all.extend(transcript.iter().cloned());
                self.stored.change_to(&all, &slots)
            }
        };
        change.session = self.stored.session;
        change.id = self.id;
        change.ends = self.ends;
        let (tenant, thread) = (self.tenant, self.thread);
        Ok(self.store.append(tenant, thread, self.version, change))
    }
}

/// A turn that is being stored.
pub(super) struct Saving {
    work: StoreFuture<u64>,
    limit: Sleep,
}

impl Saving {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        if let Poll::Ready(stored) = Pin::new(&mut self.work).poll(cx) {
            return Poll::Ready(stored.map(drop));
        }
        self.limit.as_mut().poll(cx).map(|()| {
            let why = "the store did not append the turn within 30 seconds";
            Err(StoreError::failed(why))
        })
    }
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
        self.stored = loaded.unwrap_or_default();
        self.is_resumed = request.resume.is_some();
        // An earlier attempt of a new run may have left its base.
        let started = match request.resume {
            Some(_) => self.started()?,
            None => None,
        };
        let slots = started.as_ref().and_then(|started| started.slots.clone());
        self.slots = Slots::restore(slots.unwrap_or_else(|| self.stored.slots.clone()));
        if started.is_none() {
            let start = Started {
                version: self.stored.version,
                earlier: self.earlier(),
                slots: None,
            };
            self.context
                .update_state::<Base>(|_| Some(start.clone()))
                .map_err(Error::from)?;
        }
        if request.resume.is_none() {
            request.transcript = self.merged(&request.transcript);
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

    fn merged(&self, new: &Transcript) -> Transcript {
        let history = &self.stored.history;
        let mut merged = match self.earlier() {
            // Shares the stored turns, so that neither a store nor a change compares them by value.
            0 => history.clone(),
            earlier => history.turns_after(earlier).into_iter().collect(),
        };
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

    /// Starts to store the result of the run; `None` if there is nothing to store.
    pub(super) fn finish(&self, finish: &mut Finish) -> Result<Option<Saving>, Error> {
        if finish.outcome == Outcome::Interrupted {
            self.suspend(finish)?;
            return Ok(None);
        }
        match &finish.transcript {
            Some(transcript) if self.settings.is_lazy => {
                let work = self
                    .change(Ok(finish.outcome.clone()))?
                    .append(transcript)?;
                self.store_later(async move {
                    work.await?;
                    Ok(())
                });
                Ok(None)
            }
            Some(transcript) => self.save(transcript, Ok(finish.outcome.clone())).map(Some),
            None => Ok(None),
        }
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

    /// The change of a run that ends with this outcome.
    fn change(&self, outcome: Result<Outcome, ErrorKind>) -> Result<Change, SlotError> {
        let started = self.started()?;
        let (version, earlier) = started.map_or((self.stored.version, self.earlier()), |started| {
            (started.version, started.earlier)
        });
        Ok(Change {
            store: Arc::clone(&self.settings.store),
            tenant: self.tenant.clone(),
            thread: self.thread.clone(),
            stored: self.stored.clone(),
            version,
            earlier,
            // A stored run may be resumed after its turn was appended. The key of its storage is unique,
            // unlike the id that a client has chosen.
            id: RunKey::of(&self.context).map(|key| key.run.as_str().into()),
            // Another process may have taken the run over.
            ends: RunClaim::of(&self.context).map(|claim| (claim, outcome)),
            slots: self.slots.clone(),
        })
    }

    fn save(
        &self,
        transcript: &Transcript,
        outcome: Result<Outcome, ErrorKind>,
    ) -> Result<Saving, Error> {
        let clock = self.context.environment().clock();
        Ok(Saving {
            work: self.change(outcome)?.append(transcript)?,
            limit: clock.sleep(STORED_WITHIN),
        })
    }

    /// Stores the turns so far of a run whose body is dropped, once the agent inside is dropped as well.
    pub(super) fn defer(&self) {
        // A request that a layer outside has not accepted leaves nothing.
        if !self.is_over() || self.context.has_held_effects() {
            return;
        }
        let change = self.change(failed(&self.context, None));
        let closed = self.closed.clone();
        self.store_later(async move {
            if let Some(transcript) = closed.get() {
                change?.append(&transcript)?.await?;
            }
            Ok(())
        });
    }

    /// Continues to store a turn whose body is dropped.
    pub(super) fn save_later(&self, saving: Saving) {
        self.store_later(async move {
            saving.work.await?;
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

    /// Adds the slots of the conversation to the state of a suspended run.
    fn suspend(&self, finish: &mut Finish) -> Result<(), Error> {
        if finish.state.is_none() {
            return Ok(());
        }
        let slots = Some(self.slots.snapshot()?);
        let started = match self.started()? {
            Some(started) => Started { slots, ..started },
            None => Started {
                version: self.stored.version,
                earlier: self.earlier(),
                slots,
            },
        };
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
    pub(super) fn refuse(&self, error: Error) -> Option<Error> {
        let is_moved = error.kind() == ErrorKind::Conflict;
        if !is_moved && !self.settings.is_required {
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
