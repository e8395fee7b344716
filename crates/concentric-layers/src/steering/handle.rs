use super::SteeringGate;
use concentric_core::{Context, HistoryError, Message, MessageId, Transcript, Turn};
use std::{
    collections::HashSet,
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Puts messages into a run that runs. A handle: clones are the same.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct Steering(Arc<Mutex<Inner>>);

struct Inner {
    // In the order in which they came.
    waiting: Vec<Waiting>,
    capacity: usize,
    // Which gate counts: the last one made.
    gate: u64,
    ended: bool,
}

/// A message that nobody has seen in the conversation yet.
struct Waiting {
    message: Message,
    when: When,
    // The run was told to say it.
    offered: bool,
}

/// When a message is said.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    NextStep,
    Idle,
}

impl Steering {
    /// Creates a handle that keeps at most `capacity` messages.
    ///
    /// It takes messages before its run has begun, too.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            waiting: Vec::new(),
            capacity,
            gate: 0,
            ended: false,
        })))
    }

    /// The gate of the run that is to be steered from here on; gates made before say nothing more.
    ///
    /// A run that goes on after it was interrupted needs a new one.
    pub fn gate(&self) -> SteeringGate {
        let mut inner = self.lock();
        inner.gate += 1;
        inner.ended = false;
        SteeringGate::new(self.clone(), inner.gate)
    }

    /// Has `message` said before the run's next model call.
    ///
    /// # Errors
    ///
    /// It can't be, and is not kept.
    pub fn at_next_step(&self, message: Message) -> Result<(), SteerError> {
        self.put(message, When::NextStep)
    }

    /// Has `message` said when the run would end.
    ///
    /// # Errors
    ///
    /// It can't be, and is not kept.
    pub fn when_idle(&self, message: Message) -> Result<(), SteerError> {
        self.put(message, When::Idle)
    }

    /// Takes the messages back that were not said: those that are not in `conversation`, which is the
    /// [transcript](concentric_core::Finish::transcript) of the run that has ended.
    pub fn take_back(&self, conversation: &Transcript) -> Vec<Message> {
        let mut inner = self.lock();
        inner.forget_said(conversation);
        let waiting = inner.waiting.drain(..);
        waiting.map(|waiting| waiting.message).collect()
    }

    /// How many messages it keeps: those that wait, and those that were said just now.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    fn put(&self, message: Message, when: When) -> Result<(), SteerError> {
        // What is checked here can be said.
        let message = Turn::message(message).map_err(SteerError::Invalid)?;
        let mut inner = self.lock();
        if inner.ended {
            return Err(SteerError::Ended);
        }
        if inner.waiting.len() >= inner.capacity {
            return Err(SteerError::Full);
        }
        inner.waiting.push(Waiting {
            message: message.as_message().clone(),
            when,
            offered: false,
        });
        Ok(())
    }

    /// What is to be said now in `conversation`, if `gate` counts; of one kind, or of both.
    ///
    /// If there is nothing when the run would end, it has ended.
    pub(super) fn offer(
        &self,
        gate: u64,
        at_end: bool,
        conversation: &Transcript,
        context: &Context,
    ) -> Result<Vec<Turn>, HistoryError> {
        let mut inner = self.lock();
        if inner.gate != gate {
            return Ok(Vec::new());
        }
        inner.forget_said(conversation);
        inner.ended = at_end && inner.waiting.is_empty();
        let now = |waiting: &&mut Waiting| at_end || waiting.when == When::NextStep;
        let offered = inner.waiting.iter_mut().filter(now).map(|waiting| {
            waiting.offered = true;
            let message = &mut waiting.message;
            // By which it is known again when it was said.
            message
                .id
                .get_or_insert_with(|| MessageId::new(context.new_id("msg_")));
            Turn::message(message.clone())
        });
        offered.collect()
    }

    /// Says that the run of `gate` is over.
    pub(super) fn end(&self, gate: u64) {
        let mut inner = self.lock();
        inner.ended |= inner.gate == gate;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Lets go of what was offered, and is in `conversation`.
    fn forget_said(&mut self, conversation: &Transcript) {
        let offered = self.waiting.iter().filter(|waiting| waiting.offered);
        let mut left: HashSet<_> = offered.filter_map(|w| w.message.id.clone()).collect();
        if left.is_empty() {
            return;
        }
        let mut said = HashSet::new();
        // What was said is among the newest turns.
        for turn in conversation.rev() {
            if let Some(id) = turn.as_message().id.as_ref().and_then(|id| left.take(id)) {
                said.insert(id);
                if left.is_empty() {
                    break;
                }
            }
        }
        self.waiting.retain(|waiting| {
            let id = waiting.message.id.as_ref();
            !(waiting.offered && id.is_some_and(|id| said.contains(id)))
        });
    }
}

/// Why a message is not put into a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SteerError {
    /// As many messages wait as may.
    Full,
    /// The run has ended, or is ending, and no other was [given](Steering::gate) the handle.
    ///
    /// Of a run that does not come to its own end this is known when it is dropped, and with it the
    /// request that its gate came in; what is put in until then stays in the handle.
    Ended,
    /// It can't stand in a conversation by itself.
    Invalid(HistoryError),
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "too many messages wait for the run to say them",
            Self::Ended => "the run has ended",
            Self::Invalid(_) => "the message can't stand by itself",
        })
    }
}

impl StdError for SteerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Full | Self::Ended => None,
        }
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("Steering")
            .field("waiting", &inner.waiting.len())
            .field("capacity", &inner.capacity)
            .field("ended", &inner.ended)
            .finish_non_exhaustive()
    }
}
