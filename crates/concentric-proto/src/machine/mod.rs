//! The agent loop as a state machine without I/O.
//!
//! A [`Machine`] decides which action an agent takes next. A driver takes one [`Action`] at a time,
//! performs it, and reports the result as an [`Input`]. `Agent` in `concentric-core` is such a
//! driver; a durable execution engine can be another.
//!
//! ```
//! use concentric_proto::machine::{Action, Input, Machine, ModelStart, RunLimits};
//! use concentric_proto::{Event, FinishReason, MessageId, Transcript, Usage};
//!
//! let mut machine = Machine::new(Transcript::new(), RunLimits::default());
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
//! # Invariants
//!
//! - A run has exactly one terminal action: an [`Event::Finish`], or [`Action::Fail`].
//! - A tool call has exactly one outcome, and one [`Event::ToolResult`].
//! - A suspended call is not handed out before a reply arrives, and a reply is used once. A call
//!   that is suspended only according to a history is handed out without a reply, so that approval
//!   can be requested again ([`Unverified`](crate::call::Unverified)).
//! - After a halt, a cancellation or a failure no further call starts.
//! - All outcomes except [`Outcome::Interrupted`] close the open round.

mod actions;
mod edit;
mod end;
mod input;
mod limits;
mod nested;
mod reply;
mod round;
mod step;

pub use self::{
    input::Input,
    limits::{RunLimits, check_edit},
    nested::ModelResume,
    step::ModelStart,
};
pub use crate::run_state::{RunState, StateError};

use self::{actions::Actions, step::Step};
use crate::{
    builder::MessageBuilder,
    call::RoundCall,
    error::{Error, SideEffects},
    event::Event,
    finish::Finish,
    id::{CallId, InterruptId, MessageId},
    interrupt::{Reply, Suspension},
    message::{Message, Part},
    run_state::{Data, Said, Stage},
    spec::ToolSpecs,
    transcript::{OpenRound, Transcript},
    usage::{FinishReason, Outcome, Usage},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

/// An action that the driver performs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Call the model with [`Machine::transcript`].
    CallModel {
        /// The index of the step, from 0.
        step: u32,
        /// The state to resume the model from, if it is an agent that was interrupted.
        resume: Option<Box<ModelResume>>,
    },
    /// Run these calls. If all calls are client calls and [`RunLimits::asks_before_round`] is set, the
    /// list is empty; then the driver only reports [`Input::RoundEnded`].
    RunTools {
        /// The step that made the calls.
        step: u32,
        /// The id of the message that makes the calls.
        message_id: Option<MessageId>,
        /// The calls.
        calls: Vec<RoundCall>,
    },
    /// Decide whether the run may finish, and report [`Input::Finish`], [`Input::Continue`],
    /// [`Input::Reject`] or [`Input::Ask`]. Occurs with [`RunLimits::asks_to_finish`], and when a run
    /// is resumed that was suspended at this point.
    MayFinish,
    /// Pass this event on to the consumer.
    Emit(Event),
    /// Pass this error on to the consumer as the last item.
    Fail(Error),
}

/// The state machine of one run; see the [module docs](self).
#[derive(Debug)]
pub struct Machine {
    state: Data,
    rules: Arc<RunLimits>,
    // The model stream that is partially read, if there is one; not part of the state.
    stream: Option<Step>,
    // Whether the model was called and has not answered yet.
    asked: bool,
    // The message id of the current step, if its start was emitted before the model answered.
    started: Option<MessageId>,
    actions: Actions,
    // The calls that were handed out.
    dispatched: Vec<Dispatched>,
    // Whether a round that contains only client calls was handed out.
    offered: bool,
    // The ids of the open round's interrupts, once one of its calls was suspended.
    #[allow(
        clippy::box_collection,
        reason = "a `HashSet` is 48 bytes, and most runs do not need one"
    )]
    asked_ids: Option<Box<HashSet<InterruptId>>>,
    // The effects before the current calls were handed out.
    effects_before: SideEffects,
    // The end of a run that waits for permission to finish; boxed, because few runs have one.
    finishing: Option<Box<Finishing>>,
    // The replies for an interrupted nested agent, and the time at which they were accepted.
    replies: Option<Box<(Vec<Reply>, SystemTime)>>,
    // The answer of an interrupted nested agent while it is resumed, and the calls that it has not
    // emitted yet.
    interrupted: Option<Box<(Said, HashMap<CallId, Part>)>>,
}

/// A call that was handed out.
#[derive(Debug)]
struct Dispatched {
    // The index of the call in the open round.
    at: usize,
    // Whether the call had waited for other calls.
    released: bool,
}

/// The end of a run that waits for permission to finish.
#[derive(Debug)]
struct Finishing {
    finish: Box<Finish>,
    asked: bool,
}

impl Machine {
    /// Creates a machine that continues `transcript`.
    // Inlined, with the functions that it calls: a machine has 600 bytes, and each call moves it.
    #[inline]
    pub fn new(transcript: Transcript, rules: impl Into<Arc<RunLimits>>) -> Self {
        Self::of(Data::new(transcript), rules.into())
    }

    /// Creates a machine that resumes the round `open`, which follows `transcript` in a history
    /// from a client.
    ///
    /// The calls wait for [replies](Self::reply). A call of a tool that is not in `tools` is
    /// refused. Calls without a reply before the first action are handed out with neither an
    /// interrupt nor a reply; the round service may request approval for them, but must not run
    /// them.
    pub fn claimed(
        transcript: Transcript,
        open: OpenRound,
        tools: &ToolSpecs,
        rules: impl Into<Arc<RunLimits>>,
    ) -> Self {
        let mut state = Data::new(transcript);
        state.stage = Stage::claimed(open, tools);
        Self::resumed(state, rules.into())
    }

    /// Resumes a stored run.
    ///
    /// Calls that were running are handed out again as [recovered](RoundCall::is_recovered) if they are
    /// read-only or [`RunLimits::resumes`] is set. The outcome of the others is
    /// [`Unknown`](crate::ToolStatus::Unknown).
    pub fn restore(RunState(mut state): RunState, rules: impl Into<Arc<RunLimits>>) -> Self {
        let rules = rules.into();
        if let Stage::Round(round) = &mut state.stage {
            for call in &mut round.calls {
                round.begun |= call.is_running();
                call.state.restore(rules.resumes);
            }
        }
        Self::resumed(state, rules)
    }

    // One expression, so that a new machine is created where it stays.
    #[inline]
    fn of(state: Data, rules: Arc<RunLimits>) -> Self {
        Self {
            state,
            rules,
            stream: None,
            asked: false,
            started: None,
            actions: Actions::default(),
            dispatched: Vec::new(),
            offered: false,
            asked_ids: None,
            finishing: None,
            effects_before: SideEffects::None,
            replies: None,
            interrupted: None,
        }
    }

    fn resumed(state: Data, rules: Arc<RunLimits>) -> Self {
        let mut machine = Self::of(state, rules);
        if let Stage::Round(_) | Stage::Inner(_) = machine.state.stage {
            machine.emit(Event::Resumed);
        }
        if std::mem::take(&mut machine.state.at_end) {
            machine.may_finish(machine.finish_of(Outcome::Completed));
        }
        machine
    }

    /// The state of the run; `None` while a model stream is partially read or an action is pending.
    pub fn state(&self) -> Option<RunState> {
        self.is_quiet().then(|| RunState(self.state.to_stored()))
    }

    fn is_quiet(&self) -> bool {
        self.stream.is_none() && !self.asked && self.actions.is_empty() && self.finishing.is_none()
    }

    /// The conversation so far, with closed rounds only.
    pub fn transcript(&self) -> &Transcript {
        &self.state.transcript
    }

    /// Returns whether the machine expects an event of the model's answer and no action is pending.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.stream.is_some() && self.actions.is_empty()
    }

    /// The message that the deltas of the model's answer are [appended](MessageBuilder::push_delta) to,
    /// if the machine [is reading](Self::is_reading). For drivers that pass on each event at once: the
    /// other events are [inputs](Self::model_event).
    #[inline(always)]
    pub fn message(&mut self) -> Option<&mut MessageBuilder> {
        match &mut self.stream {
            Some(step) if self.actions.is_empty() => Some(&mut step.builder),
            _ => None,
        }
    }

    /// Returns whether the next action is a model call and no other action is pending.
    pub fn is_model_next(&self) -> bool {
        self.is_quiet()
            && matches!(self.state.stage, Stage::Model)
            && self.state.asked_by_gates().is_none()
    }

    /// The index of the last completed step; 0 if there is none.
    pub fn last_step(&self) -> u32 {
        self.state.step.saturating_sub(1)
    }

    /// The finish reason of the last step.
    pub fn last_reason(&self) -> Option<&FinishReason> {
        self.state.reason.as_ref()
    }

    /// The suspension from an [`Input::Ask`], if it has replies and until
    /// [`take_answers`](Self::take_answers) removes it.
    #[inline]
    pub fn answered(&self) -> Option<&Suspension> {
        let asked = self.state.gate.as_deref();
        let answered = asked.filter(|asked| !asked.replies.is_empty());
        answered.map(|asked| &asked.on)
    }

    /// Removes and returns the suspension from an [`Input::Ask`] with its replies, if it has any.
    pub fn take_answers(&mut self) -> Option<(Suspension, Vec<Reply>)> {
        let asked = self.state.gate.take_if(|asked| !asked.replies.is_empty());
        asked.map(|asked| (asked.on, asked.replies))
    }

    /// Returns whether the run has emitted its terminal action, or was dropped.
    pub fn is_ended(&self) -> bool {
        matches!(self.state.stage, Stage::Ended)
    }

    /// Whether tools may have had side effects so far.
    pub fn effects(&self) -> SideEffects {
        self.state.effects
    }

    /// The tokens used so far.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// The part of [`usage`](Self::usage) since the run was last interrupted
    /// ([`Finish::attempt_usage`]).
    pub fn attempt_usage(&self) -> Usage {
        self.state.unreported()
    }

    /// Returns whether a round was handed out and has not ended.
    fn is_handed_out(&self) -> bool {
        self.offered || !self.dispatched.is_empty()
    }

    /// Like [`RunState::push_messages`], for a run that resumes from a client's history.
    pub fn push_messages(&mut self, messages: Vec<Message>) -> Result<(), Error> {
        self.state.push_messages(messages)
    }

    /// The next action; `None` while the machine waits for an input, and after the end.
    #[inline]
    pub fn action(&mut self) -> Option<Action> {
        let reads = self.stream.is_some() || self.asked;
        if reads && self.actions.is_empty() {
            return None;
        }
        self.next_action()
    }

    /// Takes the next [action](Self::action) if it is to pass on an event other than the last one.
    #[inline]
    pub fn take_event(&mut self) -> Option<Event> {
        self.actions.pop_event()
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

    /// Queues `event` for the consumer.
    fn emit(&mut self, event: Event) {
        self.actions.push_back(Action::Emit(event));
    }
}
