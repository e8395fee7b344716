use concentric_proto::{
    Message, OpenRound, Reply, Str,
    machine::ModelResume,
    run_state::{RunState, StoredSlot},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// A run to resume, and the replies to its interrupts.
///
/// It can be taken once, by one of the attempts that share it through clones of the request.
#[derive(Clone, Debug)]
pub struct Resume {
    run: Arc<Mutex<Untaken>>,
    accepted_at: Option<SystemTime>,
    messages: Vec<Message>,
}

type Untaken = Option<(ResumePoint, Vec<Reply>)>;

/// The known state of a run to resume.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ResumePoint {
    /// The state of the run, as persisted by a trusted process.
    State(Box<RunState>),
    /// An open round from an unverified history.
    UnverifiedHistory(OpenRound),
    /// No state: a layer outside the agent stores the run and resumes it.
    InStore,
}

impl From<ModelResume> for Resume {
    fn from(resume: ModelResume) -> Self {
        let state = ResumePoint::State(Box::new(resume.state));
        let mut run = Self::new(state, resume.replies);
        run.accepted_at = resume.accepted_at;
        run
    }
}

impl Resume {
    /// Creates the resumption of a run.
    pub fn new(suspended: ResumePoint, replies: Vec<Reply>) -> Self {
        Self {
            run: Arc::new(Mutex::new(Some((suspended, replies)))),
            accepted_at: None,
            messages: Vec::new(),
        }
    }

    /// Adds `messages`, which the user sent with the replies, to the run once its open round is closed
    /// ([`RunState::push_messages`]). Messages whose id the run already has are skipped.
    ///
    /// ```
    /// use concentric_core::{InterruptId, Message, MessageId, Reply, Resume, ResumePoint};
    ///
    /// let replies = vec![Reply::cancel(InterruptId::new("m1/0/call_0"))];
    /// let message = Message::user("Ask them first.").with_id(MessageId::new("m2"));
    /// let resume = Resume::new(ResumePoint::InStore, replies).with_messages(vec![message]);
    /// assert_eq!(resume.messages().len(), 1);
    /// ```
    #[must_use]
    pub fn with_messages(mut self, messages: Vec<Message>) -> Self {
        self.messages = messages;
        self
    }

    /// The messages that are added once the open round is closed.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Sets the time at which the replies were accepted, if that was before now. Expiry of the
    /// replies is checked against this time.
    #[must_use]
    pub const fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = Some(time);
        self
    }

    /// Returns the time at which the replies were accepted, if not now.
    pub const fn was_accepted_at(&self) -> Option<SystemTime> {
        self.accepted_at
    }

    /// Returns the slots of the run, if its state is known.
    pub(crate) fn slots(&self) -> Option<Vec<StoredSlot>> {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            Some((ResumePoint::State(state), _)) => Some(state.slots().to_vec()),
            _ => None,
        }
    }

    /// Returns the names of the run's overrides that are not among `names`.
    pub(crate) fn missing_overrides(&self, names: &[Str]) -> Vec<Str> {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let of_run = match run.as_ref() {
            Some((ResumePoint::State(state), _)) => state.overrides(),
            _ => &[],
        };
        let missing = of_run.iter().filter(|name| !names.contains(name));
        missing.cloned().collect()
    }

    /// Takes the run and the replies, unless another attempt has taken them.
    pub fn take(&self) -> Option<(ResumePoint, Vec<Reply>)> {
        self.run
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Returns whether the run is stored by a layer ([`ResumePoint::InStore`]) and not taken yet.
    pub fn is_elsewhere(&self) -> bool {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*run, Some((ResumePoint::InStore, _)))
    }

    /// Returns the [taken](Self::take) run for another attempt, if this one had no effect.
    pub fn give_back(&self, suspended: ResumePoint, replies: Vec<Reply>) {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        *run = Some((suspended, replies));
    }
}
