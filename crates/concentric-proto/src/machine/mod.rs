//! The loop as a pure machine: inputs in, actions out.
//!
//! A [`Machine`] decides what an agent does next, and does nothing itself: it has no I/O, no clock,
//! no randomness and no locks. A driver takes one [`Action`] at a time, does it, and reports the
//! result as an [`Input`]. `Agent` of `concentric-core` is such a driver; a durable engine can be
//! another.
//!
//! ```
//! use concentric_proto::machine::{Action, Input, Machine, ModelStart, Rules};
//! use concentric_proto::{Event, FinishReason, MessageId, Transcript, Usage};
//!
//! let mut machine = Machine::new(Transcript::new(), Rules::default());
//! assert!(matches!(machine.action(), Some(Action::CallModel { step: 0, .. })));
//!
//! machine.input(Input::ModelStarted(ModelStart::new(MessageId::new("m"))));
//! machine.input(Input::ModelEvent(Event::text("Hi!")));
//! machine.input(Input::ModelEvent(Event::finish(FinishReason::Stop, Usage::new(3, 2))));
//! let mut events = 0;
//! while let Some(Action::Emit(_)) = machine.action() {
//!     events += 1;
//! }
//! assert_eq!(events, 4); // step start, text, step finish, finish
//! assert!(machine.is_ended());
//! ```
//!
//! # What it keeps, for every order of inputs
//!
//! - A run has exactly one terminal action: an [`Event::Finish`], or [`Action::Fail`].
//! - A tool call has exactly one outcome, and one [`Event::ToolResult`].
//! - A call that waits is not handed out before it is replied to, and a reply is taken once. One
//!   that only a history says to wait is handed out without a reply, to be asked about
//!   ([`Answered`]).
//! - After a halt, a cancel or a failure no further call starts.
//! - Every end but [`Outcome::Interrupted`] closes the open round.

mod end;
mod input;
mod limits;
mod nested;
mod reply;
mod round;
mod step;

pub use self::{
    input::Input,
    limits::{CheckEdit, Rules},
    nested::ModelResume,
    step::ModelStart,
};
pub use crate::run_state::{MachineState, StateError, UnexpectedMessage};

use self::step::Step;
use crate::{
    call::RoundCall,
    error::{Effects, Error},
    event::Event,
    finish::Finish,
    id::{CallId, InterruptId, MessageId},
    interrupt::{Answered, Reply},
    message::{Message, Part, ToolOutcome},
    run_state::{Data, Said, SlotState, Stage},
    spec::ToolSpecs,
    transcript::{OpenRound, Transcript, Turn},
    usage::{FinishReason, Outcome, Usage},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::SystemTime,
};

/// Something to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Call the model with [`Machine::transcript`].
    CallModel {
        /// The step, from 0.
        step: u32,
        /// What the model resumes from, if it is an agent that was interrupted.
        resume: Option<Box<ModelResume>>,
    },
    /// Run these calls. There are none, if they are all the client's to run and somebody may decide
    /// about the round ([`Rules::asks_before_round`]): then nothing is to be done but
    /// [`Input::RoundEnded`].
    RunTools {
        /// The step that made them.
        step: u32,
        /// The message that makes them.
        message_id: Option<MessageId>,
        /// The calls.
        calls: Vec<RoundCall>,
    },
    /// Say whether the run may finish ([`Input::Finish`], [`Input::Continue`], [`Input::Reject`],
    /// [`Input::Ask`]); with [`Rules::asks_to_finish`], and where that was asked about when the run was interrupted.
    MayFinish,
    /// Hand this event to the consumer.
    Emit(Event),
    /// Hand this error to the consumer; it is the last item.
    Fail(Error),
}

/// The loop of one run.
///
/// See the [module docs](self).
#[derive(Debug)]
pub struct Machine {
    state: Data,
    rules: Arc<Rules>,
    // The model stream that is half read, if one is; not part of the state.
    stream: Option<Step>,
    // Whether the model was asked for and has not answered.
    asked: bool,
    // The message of the step that the model is asked for, if its start was emitted.
    started: Option<MessageId>,
    actions: VecDeque<Action>,
    // The calls that were handed out to be run, as indices of the open round's slots.
    dispatched: Vec<usize>,
    // A round whose calls are all its client's is to be decided about.
    offered: bool,
    // What the open round waits to be told, once one of these calls has asked something.
    #[allow(
        clippy::box_collection,
        reason = "a set is 48 bytes, which every run that waits would have for nothing"
    )]
    asked_ids: Option<Box<HashSet<InterruptId>>>,
    // What may have been done before they were.
    effects_before: Effects,
    // The run's end, if it has come to it and may not finish yet; boxed, since few ask.
    finishing: Option<Box<Finishing>>,
    // What an interrupted agent in the model's place is told, and when that was accepted.
    replies: Option<Box<(Vec<Reply>, SystemTime)>>,
    // What it had said, and which calls it had not, while it is asked to go on.
    interrupted: Option<Box<(Said, HashMap<CallId, Part>)>>,
}

/// The end of a run that may not finish yet.
#[derive(Debug)]
struct Finishing {
    finish: Box<Finish>,
    asked: bool,
}

impl Machine {
    /// Creates the machine of a run that goes on with `transcript`.
    pub fn new(transcript: Transcript, rules: impl Into<Arc<Rules>>) -> Self {
        Self::of(Data::new(transcript), rules.into())
    }

    /// Creates the machine of a run that goes on with `open`, which follows `transcript`, as a
    /// history claims.
    ///
    /// Its calls wait until they are [replied](Self::reply) to; one of a tool that is not in
    /// `tools` is refused. What is not replied to before the first action is handed out all the
    /// same, with neither a question nor a reply: to be asked about, and not to be run.
    pub fn claimed(
        transcript: Transcript,
        open: OpenRound,
        tools: &ToolSpecs,
        rules: impl Into<Arc<Rules>>,
    ) -> Self {
        let mut state = Data::new(transcript);
        state.stage = Stage::claimed(open, tools);
        Self::of(state, rules.into())
    }

    /// Goes on with a run that was written down.
    ///
    /// A call that was running then is handed out again as [recovered](RoundCall::recovered), if
    /// the round service knows what that means ([`Rules::resumes`]); else its outcome is unknown.
    pub fn restore(MachineState(mut state): MachineState, rules: impl Into<Arc<Rules>>) -> Self {
        let rules = rules.into();
        if let Stage::Round(round) = &mut state.stage {
            for slot in &mut round.slots {
                if !slot.is_running() {
                    continue;
                }
                round.begun = true;
                slot.state = SlotState::Ready;
                if let Some(answered) = &mut slot.answered {
                    answered.taken_up = true;
                }
                if slot.is_only_asked_about() {
                    continue;
                }
                if slot.refusal.is_none() && !rules.resumes && !slot.read_only {
                    slot.state = SlotState::Settled(ToolOutcome::unknown(
                        "The tool was started, and its process ended before it was done.",
                    ));
                }
                slot.recovered = slot.refusal.is_none();
            }
        }
        Self::of(state, rules)
    }

    fn of(state: Data, rules: Arc<Rules>) -> Self {
        let mut machine = Self {
            state,
            rules,
            stream: None,
            asked: false,
            started: None,
            actions: VecDeque::new(),
            dispatched: Vec::new(),
            offered: false,
            asked_ids: None,
            finishing: None,
            effects_before: Effects::None,
            replies: None,
            interrupted: None,
        };
        if let Stage::Round(_) | Stage::Inner(_) = machine.state.stage {
            machine.emit(Event::Resumed);
        }
        if std::mem::take(&mut machine.state.at_end) {
            machine.may_finish(machine.finish_with(Outcome::Completed));
        }
        machine
    }

    /// The run's state, unless a model stream is half read or an action has not been taken.
    pub fn state(&self) -> Option<MachineState> {
        self.is_quiet().then(|| MachineState(self.state.clone()))
    }

    fn is_quiet(&self) -> bool {
        self.stream.is_none() && !self.asked && self.actions.is_empty() && self.finishing.is_none()
    }

    /// The conversation so far; every round in it is closed.
    pub fn transcript(&self) -> &Transcript {
        &self.state.transcript
    }

    /// Whether the next input is an event of the model's answer, and no action is due.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.stream.is_some() && self.actions.is_empty()
    }

    /// Whether the next action is a call of the model, and no other action is due.
    pub fn is_model_next(&self) -> bool {
        self.is_quiet() && self.state.stage == Stage::Model && self.state.asked_by_gates().is_none()
    }

    /// The last step that was finished; 0 if none was.
    pub fn last_step(&self) -> u32 {
        self.state.step.saturating_sub(1)
    }

    /// Why the model stopped in the last step.
    pub fn last_reason(&self) -> Option<&FinishReason> {
        self.state.reason.as_ref()
    }

    /// The replies to an [`Input::Ask`], until they are [taken](Self::take_answers).
    pub fn answers(&self) -> Option<&Answered> {
        let asked = self.state.gate.as_deref();
        asked.filter(|asked| !asked.replies.is_empty())
    }

    /// What was replied to an [`Input::Ask`]; once.
    pub fn take_answers(&mut self) -> Option<Box<Answered>> {
        self.state.gate.take_if(|asked| !asked.replies.is_empty())
    }

    /// Whether the run has had its terminal action, or was dropped.
    pub fn is_ended(&self) -> bool {
        self.state.stage == Stage::Ended
    }

    /// Whether tools may have done something by now.
    pub fn effects(&self) -> Effects {
        self.state.effects
    }

    /// The tokens used so far.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// Whether a round was handed out and has not ended.
    fn is_handed_out(&self) -> bool {
        self.offered || !self.dispatched.is_empty()
    }

    /// Like [`MachineState::push_messages`], for a run that resumes from a client's history.
    pub fn push_messages(&mut self, messages: Vec<Message>) -> Result<(), UnexpectedMessage> {
        self.state.push_messages(messages)
    }

    /// Appends `turn` to the conversation, if it stands between two steps; returns whether it does.
    pub fn push(&mut self, turn: Turn) -> bool {
        let between = self.stream.is_none() && self.state.stage == Stage::Model;
        if between {
            self.state.transcript.push(turn);
        }
        between
    }

    /// The next thing to do; `None` while the machine waits for an input, and when it has ended.
    #[inline]
    pub fn action(&mut self) -> Option<Action> {
        let reads = self.stream.is_some() || self.asked;
        if reads && self.actions.is_empty() {
            return None;
        }
        self.next_action()
    }

    fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.is_ended() {
            return None;
        }
        if self.state.asked_by_gates().is_some() {
            self.interrupt();
            return self.actions.pop_front();
        }
        if let Some(finishing) = &mut self.finishing {
            return (!std::mem::replace(&mut finishing.asked, true)).then_some(Action::MayFinish);
        }
        match &self.state.stage {
            Stage::Model => {
                self.asked = true;
                Some(Action::CallModel {
                    step: self.state.step,
                    resume: None,
                })
            }
            Stage::Inner(_) => {
                let stage = std::mem::replace(&mut self.state.stage, Stage::Model);
                let Stage::Inner(inner) = stage else {
                    return None;
                };
                Some(self.resume_inner(*inner))
            }
            Stage::Round(_) if self.is_handed_out() => None,
            Stage::Round(_) => {
                self.go_on_with_round();
                self.action()
            }
            Stage::Ended => None,
        }
    }

    /// Has `event` handed to the consumer, after all that was before.
    fn emit(&mut self, event: Event) {
        self.actions.push_back(Action::Emit(event));
    }
}
