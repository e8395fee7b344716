use super::watch::Entered;
use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Finish, Interrupt, Outcome, Str, ThreadId, Transcript,
    machine::MachineState, state::Slots,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a session's handles share.
pub(super) struct Shared<A> {
    pub(super) state: Mutex<State<A>>,
    /// One permit: the turn that runs has it.
    pub(super) turn: Arc<Semaphore>,
    pub(super) queue: usize,
    pub(super) thread_id: ThreadId,
    pub(super) thread: Slots,
    pub(super) session: Slots,
    pub(super) entered: Mutex<Entered>,
}

pub(super) struct State<A> {
    pub(super) agent: A,
    pub(super) history: Transcript,
    /// The last turn waits for replies.
    pub(super) suspended: Option<Waits>,
    /// The turns that run or wait for theirs, the oldest first.
    pub(super) turns: Vec<(u64, Context)>,
    pub(super) running: Option<u64>,
    pub(super) next: u64,
    pub(super) closed: bool,
}

/// A turn that waits for replies.
#[derive(Clone)]
pub(super) struct Waits {
    pub(super) state: Box<MachineState>,
    /// The conversation's slots as the turn has left them.
    pub(super) slots: Slots,
}

impl<A> Shared<A> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_entered(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines a turn up.
    ///
    /// # Errors
    ///
    /// There is no room for it, or the session is over.
    pub(super) fn enter(self: &Arc<Self>, context: &Context) -> Result<Turn<A>, Error> {
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        // One runs, and the others wait.
        if state.turns.len() > self.queue {
            let (code, why) = match self.queue {
                0 => ("busy", "the session is busy with another turn"),
                _ => ("queue_full", "too many turns wait already"),
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

    /// Cancels the turns of which `which` holds, by whether they run; returns how many.
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

    /// Ends the session, once. If a turn runs, its end is reported when that turn is over.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let runs = state.running.is_some();
        drop(state);
        self.cancel(|_| true);
        if !runs {
            self.report_end();
        }
    }

    /// Reports the end of the session to whoever has not been told of it yet.
    fn report_end(&self) {
        let history = self.lock().history.clone();
        // They may look at the session.
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
    Error::new(ErrorKind::Conflict, "the session is over").with_code("session_ended")
}

/// A turn's place in its session; given up on drop.
pub(super) struct Turn<A> {
    shared: Arc<Shared<A>>,
    id: u64,
    /// It runs.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    context: Context,
    resumed: Option<Resumed>,
    /// The conversation's slots, as this turn changes them; put in place when it finishes.
    slots: Option<Slots>,
}

/// What a turn goes on with.
struct Resumed {
    waits: Waits,
    // How many effects there were by then.
    effects: u64,
}

impl<A> Turn<A> {
    pub(super) fn shared(&self) -> &Arc<Shared<A>> {
        &self.shared
    }

    /// Says that it is its turn.
    ///
    /// # Errors
    ///
    /// The session is over.
    pub(super) fn begin(&self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(closed());
        }
        state.running = Some(self.id);
        Ok(())
    }

    /// Continues the turn that `waits`: the caller that replies has taken it.
    pub(super) fn resume(&mut self, waits: Waits) {
        self.resumed = Some(Resumed {
            waits,
            effects: self.context.effect_count(),
        });
    }

    /// Copies `slots` for this turn.
    pub(super) fn draft(&mut self, slots: &Slots) -> Slots {
        let draft = slots.draft();
        self.slots = Some(draft.clone());
        draft
    }

    /// The turn has failed; given up now, it waits as before unless it has done something.
    pub(super) fn fail(&mut self, error: &Error) {
        // Those that the state tells of were there before.
        self.resumed
            .take_if(|resumed| error.effects() > resumed.waits.state.effects());
    }

    /// Keeps what came of the turn.
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
            // History and slots are of one moment.
            state.history = transcript.clone();
            replaced = slots.as_ref().map(|slots| self.shared.thread.commit(slots));
        }
        // What a user's code does is done without the lock.
        drop(state);
        drop((resumed, slots, replaced));
    }
}

impl<A> Drop for Turn<A> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.turns.retain(|(id, _)| *id != self.id);
        let ran = state.running.take_if(|id| *id == self.id).is_some();
        // What is not kept is dropped without the lock.
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
    /// What the last turn waits to be told.
    pub(super) fn interrupts(&self) -> Vec<Interrupt> {
        let asked = self
            .suspended
            .as_ref()
            .map(|waits| waits.state.interrupts());
        asked.into_iter().flatten().cloned().collect()
    }
}
