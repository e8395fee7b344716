use super::gate::SteeringGate;
use concentric_core::{
    Context, HistoryError, Message, MessageId, Plugin, Transcript, Turn,
    agent::{Installer, StepGate},
};
use std::{
    collections::HashSet,
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A handle that inserts messages into an active run. Clones share the same queue.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct Steering(Arc<Mutex<Inner>>);

struct Inner {
    // In the order of insertion.
    waiting: Vec<Waiting>,
    capacity: usize,
    // The number of the active gate, which is the one created last.
    gate: u64,
    ended: bool,
}

/// A message that has not been seen in the conversation yet.
struct Waiting {
    message: Message,
    when: When,
    // The message was given to the run.
    offered: bool,
}

/// When a message is inserted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    NextStep,
    Idle,
}

impl Steering {
    /// Creates a handle that holds at most `capacity` messages.
    ///
    /// The handle accepts messages before the run has started.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            waiting: Vec::new(),
            capacity,
            gate: 0,
            ended: false,
        })))
    }

    /// Creates a gate and makes it the active one; gates that were created before insert no more
    /// messages.
    ///
    /// A resumed run needs a new gate. The gate is named `steering`.
    pub fn gate(&self) -> impl StepGate + use<> {
        let mut inner = self.lock();
        inner.gate += 1;
        inner.ended = false;
        SteeringGate::new(self.clone(), inner.gate)
    }

    /// Queues `message` for insertion before the run's next model call.
    ///
    /// # Errors
    ///
    /// Returns a [`SteerError`] if the message was not queued.
    pub fn at_next_step(&self, message: Message) -> Result<(), SteerError> {
        self.put(message, When::NextStep)
    }

    /// Queues `message` for insertion when the run would end.
    ///
    /// # Errors
    ///
    /// Returns a [`SteerError`] if the message was not queued.
    pub fn when_idle(&self, message: Message) -> Result<(), SteerError> {
        self.put(message, When::Idle)
    }

    /// Removes and returns the messages that were not inserted: those that `conversation`, the
    /// [transcript](concentric_core::Finish::transcript) of the finished run, does not contain.
    pub fn take_back(&self, conversation: &Transcript) -> Vec<Message> {
        let mut inner = self.lock();
        inner.forget_said(conversation);
        let waiting = inner.waiting.drain(..);
        waiting.map(|waiting| waiting.message).collect()
    }

    /// Returns the number of held messages, including those that the run has just received.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Returns whether the handle holds no messages.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    fn put(&self, message: Message, when: When) -> Result<(), SteerError> {
        // A message that is valid as a turn can be inserted later.
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

    /// Returns the messages to insert into `conversation` now, if `gate` is the active gate: all of
    /// them if `at_end`, otherwise those for the next step.
    ///
    /// If there are none at the end, the run is marked as ended.
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
            // The id identifies the message in the conversation later.
            message
                .id
                .get_or_insert_with(|| MessageId::new(context.new_id("msg_")));
            Turn::message(message.clone())
        });
        offered.collect()
    }

    /// Marks the run as ended if `gate` is the active gate.
    pub(super) fn end(&self, gate: u64) {
        let mut inner = self.lock();
        inner.ended |= inner.gate == gate;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the gate of an agent whose runs are sequential.
impl Plugin for Steering {
    fn install(self, at: &mut Installer<'_>) {
        at.step_gate(self.gate());
    }
}

impl Inner {
    /// Removes the offered messages that `conversation` contains.
    fn forget_said(&mut self, conversation: &Transcript) {
        let offered = self.waiting.iter().filter(|waiting| waiting.offered);
        let mut left: HashSet<_> = offered.filter_map(|w| w.message.id.clone()).collect();
        if left.is_empty() {
            return;
        }
        let mut said = HashSet::new();
        // Inserted messages are among the newest turns.
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

/// The reason why a message was not queued.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SteerError {
    /// The handle already holds the maximum number of messages.
    Full,
    /// The run has ended or is ending, and no [gate](Steering::gate) was created for another run.
    ///
    /// If a run is interrupted, cancelled or fails, this is known only when its request is dropped,
    /// and the gate with it. Messages that are queued until then stay in the handle.
    Ended,
    /// The message is not valid as a turn of a conversation.
    Invalid(HistoryError),
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of messages for the run is full",
            Self::Ended => "the run has ended",
            Self::Invalid(_) => "the message is not valid as a turn of a conversation",
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
