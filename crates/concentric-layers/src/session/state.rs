use super::{
    idle::Idle,
    keep::Saving,
    watch::{Entered, Watch},
};
use concentric_core::{
    CancelReason, Context, Environment, Error, ErrorKind, Finish, Interrupt, Outcome, Str,
    ThreadId, Transcript,
    machine::RunState,
    state::Slots,
    store::{StoreError, StoredThread, Tenant, ThreadStore},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::AbortHandle,
};

type Budget<A> = Arc<dyn Fn(&A) -> u64 + Send + Sync>;

/// The settings of the sessions that a factory makes.
pub(super) struct Settings<A> {
    pub(super) queue: usize,
    pub(super) idle: Option<Idle>,
    pub(super) environment: Environment,
    /// Derives the context budget of an agent.
    pub(super) budget: Option<Budget<A>>,
    pub(super) watches: Vec<Arc<dyn Watch>>,
}

impl<A> Settings<A> {
    pub(super) fn budget(&self, agent: &A) -> Option<u64> {
        self.budget.as_ref().map(|budget| budget(agent))
    }
}

impl<A> Clone for Settings<A> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue,
            idle: self.idle.clone(),
            environment: self.environment.clone(),
            budget: self.budget.clone(),
            watches: self.watches.clone(),
        }
    }
}

/// The state that the handles of a session share.
pub(super) struct Shared<A> {
    pub(super) state: Mutex<State<A>>,
    /// One permit, held by the active turn.
    pub(super) turn: Arc<Semaphore>,
    pub(super) settings: Settings<A>,
    /// The store of the conversation, if it is stored.
    pub(super) keep: Option<Arc<dyn ThreadStore>>,
    /// Stops the task that ends an idle session.
    pub(super) idle_end: OnceLock<AbortHandle>,
    pub(super) thread_id: ThreadId,
    pub(super) session_id: ThreadId,
    /// The owner of the conversation.
    pub(super) tenant: Tenant,
    pub(super) thread: Slots,
    pub(super) session: Slots,
    pub(super) entered: Mutex<Entered>,
}

pub(super) struct State<A> {
    pub(super) agent: A,
    pub(super) history: Transcript,
    /// The suspended turn.
    pub(super) suspended: Option<Waits>,
    /// The active and the queued turns, oldest first.
    pub(super) turns: Vec<(u64, Context)>,
    pub(super) running: Option<u64>,
    pub(super) next: u64,
    pub(super) closed: bool,
    /// The conversation as it was last stored, without its suspended turn.
    pub(super) stored: StoredThread,
    /// The context budget of the agent.
    pub(super) budget: Option<u64>,
    /// The time at which the last turn ended, by the monotonic clock.
    pub(super) idle_since: Duration,
}

/// A suspended turn.
#[derive(Clone)]
pub(super) struct Waits {
    pub(super) state: Box<RunState>,
    /// The conversation's slots as the turn left them.
    pub(super) slots: Slots,
}

impl<A> Shared<A> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_entered(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a turn to the queue.
    ///
    /// # Errors
    ///
    /// The queue is full, or the session has ended.
    pub(super) fn enter(self: &Arc<Self>, context: &Context) -> Result<Turn<A>, Error> {
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        // The active turn does not count towards the queue.
        if state.turns.len() > self.settings.queue {
            let (code, why) = match self.settings.queue {
                0 => ("busy", "another turn of the session is active"),
                _ => ("queue_full", "the queue of the session is full"),
            };
            return Err(Error::new(ErrorKind::Overloaded, Str::from_static(why)).with_code(code));
        }
        let id = state.next;
        state.next += 1;
        state.turns.push((id, context.clone()));
        drop(state);
        Ok(Turn {
            shared: Arc::clone(self),
            id,
            permit: None,
            context: context.clone(),
            resumed: None,
            slots: None,
        })
    }

    /// Cancels the turns for which `which` returns true, given whether the turn is active. Returns
    /// their number.
    pub(super) fn cancel(&self, which: impl Fn(bool) -> bool) -> usize {
        let turns: Vec<Context> = {
            let state = self.lock();
            let turns = state.turns.iter();
            turns
                .filter(|(id, _)| which(state.running == Some(*id)))
                .map(|(_, context)| context.clone())
                .collect()
        };
        for context in &turns {
            context.cancel(CancelReason::User);
        }
        turns.len()
    }

    fn now(&self) -> Duration {
        self.settings.environment.clock().monotonic()
    }

    /// The time without turns; `None` while there is one.
    pub(super) fn idle(&self) -> Option<Duration> {
        let now = self.now();
        let state = self.lock();
        let idle = now.saturating_sub(state.idle_since);
        state.turns.is_empty().then_some(idle)
    }

    /// Makes the owner of the conversation that of a run.
    pub(super) fn own(&self, context: &mut Context) {
        if self.tenant != Tenant::default() {
            context.extensions_mut().insert(self.tenant.clone());
        }
    }

    /// Ends the session if it was idle for `limit`; otherwise, returns the time until it may be.
    pub(super) fn end_if_idle(&self, limit: Duration) -> Option<Duration> {
        let now = self.now();
        let mut state = self.lock();
        let idle = now.saturating_sub(state.idle_since);
        if state.closed {
            return None;
        }
        if !state.turns.is_empty() {
            // Not at once, however small the limit is.
            return Some(limit.max(Duration::from_millis(1)));
        }
        if idle < limit {
            return Some(limit - idle);
        }
        // Under the same lock, so that no turn enters between the check and the end.
        state.closed = true;
        drop(state);
        self.report_end();
        None
    }

    /// Ends the session, once. If a turn is active, the end is reported after it.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let runs = state.running.is_some();
        drop(state);
        self.stop_waiting();
        self.cancel(|_| true);
        if !runs {
            self.report_end();
        }
    }

    /// Stops the task that ends an idle session.
    fn stop_waiting(&self) {
        if let Some(waiting) = self.idle_end.get() {
            waiting.abort();
        }
    }

    /// Reports the end of the session to all observers that have not received it.
    fn report_end(&self) {
        let history = self.lock().history.clone();
        // Called without a lock, because observers may access the session.
        let mut entered = self.lock_entered().take();
        entered.end(&history);
    }
}

impl<A> Drop for Shared<A> {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Conflict, "the session has ended").with_code("session_ended")
}

/// An active or queued turn; removed from the session on drop.
pub(super) struct Turn<A> {
    shared: Arc<Shared<A>>,
    id: u64,
    /// Set while the turn is active.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    context: Context,
    resumed: Option<Resumed>,
    /// The copy of the conversation's slots that this turn changes, applied when it finishes.
    slots: Option<Slots>,
}

/// The suspended turn that this turn resumes.
struct Resumed {
    waits: Waits,
    // The number of effects when the turn was resumed.
    effects: u64,
}

impl<A> Turn<A> {
    pub(super) fn shared(&self) -> &Arc<Shared<A>> {
        &self.shared
    }

    /// Makes the turn the active one.
    ///
    /// # Errors
    ///
    /// The session has ended.
    pub(super) fn begin(&self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(closed());
        }
        state.running = Some(self.id);
        Ok(())
    }

    /// Resumes the suspended turn `waits`.
    pub(super) fn resume(&mut self, waits: Waits) {
        self.resumed = Some(Resumed {
            waits,
            effects: self.context.effect_count(),
        });
    }

    /// Returns a copy of `slots` for this turn.
    pub(super) fn draft(&mut self, slots: &Slots) -> Slots {
        let draft = slots.draft();
        self.slots = Some(draft.clone());
        draft
    }

    /// Records a failure. When dropped, the turn is suspended again unless it has had effects.
    pub(super) fn fail(&mut self, error: &Error) {
        // Effects that the stored state reports are not new.
        self.resumed
            .take_if(|resumed| error.effects() > resumed.waits.state.effects());
    }

    /// Starts to store the result of the turn; `None` without a store.
    pub(super) fn save(&self, finish: &Finish) -> Result<Option<Saving>, Error> {
        match &self.slots {
            Some(slots) => self.shared.save_finished(finish, slots),
            None => Ok(None),
        }
    }

    /// Records that the conversation was stored. If another session has changed it, this one ends.
    pub(super) fn saved(&self, saved: Result<StoredThread, StoreError>) -> Result<(), Error> {
        match saved {
            Ok(stored) => self.shared.lock().stored = stored,
            Err(error) => {
                if matches!(error, StoreError::Moved { .. }) {
                    self.shared.lock().closed = true;
                    self.shared.stop_waiting();
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Applies the result of the turn.
    pub(super) fn finish(&mut self, finish: &Finish) {
        let resumed = self.resumed.take();
        let slots = self.slots.take();
        let mut state = self.shared.lock();
        let mut replaced = None;
        if finish.outcome == Outcome::Interrupted {
            state.suspended = finish.state.clone().map(|state| Waits {
                state,
                slots: slots.clone().unwrap_or_default(),
            });
        } else if let Some(transcript) = &finish.transcript {
            // The history and the slots are replaced under one lock.
            state.history = transcript.clone();
            replaced = slots.as_ref().map(|slots| self.shared.thread.commit(slots));
        }
        // Dropped after the lock is released, because dropping slot values runs user code.
        drop(state);
        drop((resumed, slots, replaced));
    }
}

impl<A> Drop for Turn<A> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.turns.retain(|(id, _)| *id != self.id);
        state.idle_since = now;
        let ran = state.running.take_if(|id| *id == self.id).is_some();
        // Dropped after the lock is released.
        let mut lost = self.resumed.take();
        if let Some(resumed) =
            lost.take_if(|resumed| resumed.effects == self.context.effect_count())
        {
            state.suspended = Some(resumed.waits);
        }
        let ends = ran && state.closed;
        drop(state);
        drop(lost);
        if ends {
            self.shared.report_end();
        }
        self.permit = None;
    }
}

impl<A> State<A> {
    /// Returns the interrupts of the suspended turn.
    pub(super) fn interrupts(&self) -> Vec<Interrupt> {
        let asked = self
            .suspended
            .as_ref()
            .map(|waits| waits.state.interrupts());
        asked.into_iter().flatten().cloned().collect()
    }
}
