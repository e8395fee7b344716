//! One run of a conversation: its base, and the turn that it stores.

use super::layer::{Merge, NO_THREAD, Settings, UNKNOWN_THREAD};
use concentric_core::{
    ChatRequest, Context as RunContext, Error, ErrorKind, Finish, Outcome, Role, SideEffects,
    ThreadId, Transcript, Turn as Entry,
    context::Sleep,
    state::{Durable, Scope, Slot, SlotError, SlotPlace, Slots, StoredSlot},
    store::{RunKey, StoreError, StoreFuture, StoredThread, Tenant},
};
use serde::{Deserialize, Serialize};
use std::{
    pin::Pin,
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
    stored: StoredThread,
    slots: Slots,
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
        // An earlier attempt of a new run may have left its base.
        let started = match request.resume {
            Some(_) => self.started()?,
            None => None,
        };
        let slots = started.as_ref().and_then(|started| started.slots.clone());
        self.slots = Slots::restore(slots.unwrap_or_else(|| self.stored.slots.clone()));
        if started.is_none() {
            let version = self.stored.version;
            let slots = None;
            let start = Started { version, slots };
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

    fn merged(&self, new: &Transcript) -> Transcript {
        let stored = &self.stored.history;
        match self.settings.merge {
            Merge::ClientOverwrites => new.clone(),
            Merge::Append => stored.iter().chain(new.iter()).cloned().collect(),
            Merge::ServerWins => {
                let is_user = |turn: &&Entry| turn.as_message().role == Role::User;
                let mut turns: Vec<&Entry> = new.rev().take_while(is_user).collect();
                turns.reverse();
                let mut all = stored.clone();
                all.extend(turns.into_iter().cloned());
                all
            }
        }
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
        let Some(transcript) = &finish.transcript else {
            return Ok(None);
        };
        let mut change = self.stored.change_to(transcript, &self.slots.snapshot()?);
        change.session.clone_from(&self.stored.session);
        // A stored run may be resumed after its turn was appended. The key of its storage is unique,
        // unlike the id that a client has chosen.
        change.id = RunKey::of(&self.context).map(|key| key.run.as_str().into());
        let version = self.started()?;
        let version = version.map_or(self.stored.version, |started| started.version);
        let (tenant, thread) = (self.tenant.clone(), self.thread.clone());
        let clock = self.context.environment().clock();
        Ok(Some(Saving {
            work: self.settings.store.append(tenant, thread, version, change),
            limit: clock.sleep(STORED_WITHIN),
        }))
    }

    /// Adds the slots of the conversation to the state of a suspended run.
    fn suspend(&self, finish: &mut Finish) -> Result<(), Error> {
        let Some(mut state) = finish.state.take() else {
            return Ok(());
        };
        let version = self.started()?;
        let version = version.map_or(self.stored.version, |started| started.version);
        let slots = Some(self.slots.snapshot()?);
        let value = serde_json::to_value(Some(Started { version, slots }));
        let value = value.map_err(|error| {
            Error::new(ErrorKind::Other, "can't serialize the conversation's slots")
                .with_source(error)
        })?;
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
            let (thread, run) = (&self.thread, self.context.run_id());
            tracing::warn!(
                target: "concentric::conversation",
                %thread, %run, %error, "the turn of a finished run was not stored"
            );
            return None;
        }
        let effects = match self.context.effect_count() == self.effects {
            true => error.effects(),
            false => error.effects().max(SideEffects::Possible),
        };
        Some(error.with_effects(effects))
    }
}
