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
    pub(super) suspended: Option<Box<MachineState>>,
    /// The turns that run or wait for theirs, the oldest first.
    pub(super) turns: Vec<(u64, Context)>,
    pub(super) running: Option<u64>,
    pub(super) next: u64,
    pub(super) closed: bool,
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

    /// Ends the session, once.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        let history = match std::mem::replace(&mut state.closed, true) {
            true => return,
            false => state.history.clone(),
        };
        drop(state);
        self.cancel(|_| true);
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
}

/// What a turn goes on with.
struct Resumed {
    state: Box<MachineState>,
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
        state.running = Some(self.id);
        match state.closed {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// Goes on with `state`, which waited: whoever replies has taken it.
    pub(super) fn resume(&mut self, state: Box<MachineState>) {
        self.resumed = Some(Resumed {
            state,
            effects: self.context.effect_count(),
        });
    }

    /// The turn has failed; given up now, it waits as before unless it has done something.
    pub(super) fn fail(&mut self, error: &Error) {
        // Those that the state tells of were there before.
        self.resumed
            .take_if(|resumed| error.effects() > resumed.state.effects());
    }

    /// Keeps what came of the turn.
    pub(super) fn finish(&mut self, finish: &Finish) {
        self.resumed = None;
        let mut state = self.shared.lock();
        if finish.outcome == Outcome::Interrupted {
            state.suspended.clone_from(&finish.state);
        } else if let Some(transcript) = &finish.transcript {
            state.history = transcript.clone();
        }
    }
}

impl<A> Drop for Turn<A> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.turns.retain(|(id, _)| *id != self.id);
        state.running.take_if(|id| *id == self.id);
        if let Some(resumed) = self.resumed.take()
            && resumed.effects == self.context.effect_count()
        {
            state.suspended = Some(resumed.state);
        }
        drop(state);
        self.permit = None;
    }
}

impl<A> State<A> {
    /// What the last turn waits to be told.
    pub(super) fn interrupts(&self) -> Vec<Interrupt> {
        let asked = self.suspended.as_ref().map(|state| state.interrupts());
        asked.into_iter().flatten().cloned().collect()
    }
}
