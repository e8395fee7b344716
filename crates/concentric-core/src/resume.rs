use concentric_proto::{
    Message, OpenRound, Reply,
    machine::ModelResume,
    run_state::{MachineState, StoredSlot},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// A run to go on with, and the replies to what it asked.
///
/// It is taken up once: a clone of the request is another attempt at the same call, and finds it
/// gone.
#[derive(Clone, Debug)]
pub struct Resume {
    run: Arc<Mutex<Untaken>>,
    accepted_at: Option<SystemTime>,
    messages: Vec<Message>,
}

type Untaken = Option<(Suspended, Vec<Reply>)>;

/// What is known of a run to go on with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Suspended {
    /// Its state, as it was written down by a process that is trusted.
    State(Box<MachineState>),
    /// What a history claims, which anybody may have written.
    Claimed(OpenRound),
    /// Nothing: a layer outside the agent has it, and takes this as the wish to go on.
    Elsewhere,
}

impl From<ModelResume> for Resume {
    fn from(resume: ModelResume) -> Self {
        let state = Suspended::State(Box::new(resume.state));
        let mut run = Self::new(state, resume.replies);
        run.accepted_at = resume.accepted_at;
        run
    }
}

impl Resume {
    /// Creates the resumption of a run.
    pub fn new(suspended: Suspended, replies: Vec<Reply>) -> Self {
        Self {
            run: Arc::new(Mutex::new(Some((suspended, replies)))),
            accepted_at: None,
            messages: Vec::new(),
        }
    }

    /// Adds `messages`, which the user sent with the replies, to the run once its open round is closed
    /// ([`MachineState::push_messages`]). Messages whose id the run already has are skipped.
    ///
    /// ```
    /// use concentric_core::{InterruptId, Message, MessageId, Reply, Resume, Suspended};
    ///
    /// let replies = vec![Reply::cancel(InterruptId::new("m1/0/call_0"))];
    /// let message = Message::user("Ask them first.").with_id(MessageId::new("m2"));
    /// let resume = Resume::new(Suspended::Elsewhere, replies).with_messages(vec![message]);
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

    /// Says when the replies were accepted, if that was before now: they are in time if they were
    /// then.
    #[must_use]
    pub const fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = Some(time);
        self
    }

    /// When the replies were accepted, if not now.
    pub const fn was_accepted_at(&self) -> Option<SystemTime> {
        self.accepted_at
    }

    /// The slots of the run, if its state is known.
    pub(crate) fn slots(&self) -> Option<Vec<StoredSlot>> {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            Some((Suspended::State(state), _)) => Some(state.slots().to_vec()),
            _ => None,
        }
    }

    /// Takes the run and the replies, unless another attempt has.
    pub fn take(&self) -> Option<(Suspended, Vec<Reply>)> {
        self.run
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Whether a layer has the run ([`Suspended::Elsewhere`]), and nobody has taken it.
    pub fn is_elsewhere(&self) -> bool {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*run, Some((Suspended::Elsewhere, _)))
    }

    /// Gives back what was [taken](Self::take), for another attempt: nothing came of this one.
    pub fn give_back(&self, suspended: Suspended, replies: Vec<Reply>) {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        *run = Some((suspended, replies));
    }
}
