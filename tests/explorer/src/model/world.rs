//! The driver and its environment: tools, approvers, storage, and crashes.

use super::{
    op::{Answer, CALLS, How, Op, STOPS, Why, number, question},
    proto::{
        Event, Outcome, Reply, ReplyError, RoundCall, Suspension,
        call::CallStage,
        machine::{Action, Input, Machine},
    },
    stored::Stored,
};
use crate::{Bounds, Kind, seen::Encoding};
use std::{hash::Hash, time::SystemTime};

const ROUNDS: usize = 2;

/// The operations that a machine was fed since it was created.
const LOG: usize = 72;

/// What the explored process and its environment know.
#[derive(Clone, Debug)]
pub(super) struct World {
    resumes: bool,
    /// The stored state that the process continues; none for a new run.
    from: Option<u32>,
    log: [Op; LOG],
    logged: usize,
    pub(super) saved: Option<(u32, Facts)>,
    crashes: u8,
    pub(super) mode: Mode,
    /// The driver has no action to take.
    idle: bool,
    /// What the process knows; lost with it, unless it was saved.
    pub(super) facts: Facts,
    /// The calls whose effect began, by number; effects outlive the process.
    pub(super) started: u8,
    /// The calls whose tool began, and then asked.
    pub(super) asked_by_tool: u8,
    pub(super) handed: [Handed; CALLS],
    pub(super) handed_out: usize,
    pub(super) stopped: bool,
    pub(super) dropped: bool,
    /// The number of terminal actions that were taken.
    pub(super) terminal: u8,
    new_round: bool,
    answers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// A stored run was read, and may be replied to.
    Restored,
    /// The driver takes actions.
    Open,
    /// The model is called.
    Model { announced: bool },
    /// The model answers.
    Streaming { calls: u8, text: bool },
    /// Calls are handed out.
    Round { begun: bool },
    /// The driver decides whether the run may finish.
    MayFinish,
    /// The run has ended, and its actions are to be taken.
    Ending,
    /// The run has ended.
    Ended,
    /// The run was suspended, and stored.
    Suspended,
}

/// What a process knows of a run.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Facts {
    step: u8,
    pub(super) rounds: u8,
    /// The calls of each round.
    pub(super) made: [u8; ROUNDS],
    pub(super) calls: [Call; ROUNDS * CALLS],
    gate_asks: u8,
    /// The questions whose reply was accepted.
    pub(super) accepted: u32,
    /// The questions whose reply was delivered to the round service or to the step gate.
    pub(super) delivered: u32,
    continued: bool,
    /// A call has halted the run, and its round has ended.
    pub(super) halted: bool,
}

/// What a process knows of a call.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Call {
    pub(super) kind: Option<Kind>,
    asks: u8,
    /// It waits for a reply.
    pub(super) open: bool,
    held: bool,
    /// The accepted reply.
    pub(super) reply: Option<Answer>,
    /// The outcome that was reported first.
    pub(super) reported: Option<How>,
    /// The number of results that were emitted.
    pub(super) results: u8,
}

/// A call that was handed out.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Handed {
    pub(super) call: usize,
    pub(super) reply: Option<(Answer, u8)>,
    /// A process that ended may have started it.
    doubtful: bool,
    /// A process that ended has received the reply.
    pub(super) repeated: bool,
    refused: bool,
    released: bool,
    running: bool,
    /// It has an outcome or waits.
    done: bool,
}

/// What the machine returned.
#[derive(Debug, Default)]
pub(super) struct Fed {
    pub(super) actions: Vec<Action>,
    pub(super) reply: Option<Result<(), ReplyError>>,
    pub(super) answers: Option<(Suspension, Vec<Reply>)>,
}

impl World {
    pub(super) const fn new(resumes: bool) -> Self {
        Self {
            resumes,
            from: None,
            log: [Op::Take; LOG],
            logged: 0,
            saved: None,
            crashes: 0,
            mode: Mode::Open,
            idle: false,
            facts: Facts {
                step: 0,
                rounds: 0,
                made: [0; ROUNDS],
                calls: [Call {
                    kind: None,
                    asks: 0,
                    open: false,
                    held: false,
                    reply: None,
                    reported: None,
                    results: 0,
                }; ROUNDS * CALLS],
                gate_asks: 0,
                accepted: 0,
                delivered: 0,
                continued: false,
                halted: false,
            },
            started: 0,
            asked_by_tool: 0,
            handed: [Handed {
                call: 0,
                reply: None,
                doubtful: false,
                repeated: false,
                refused: false,
                released: false,
                running: false,
                done: false,
            }; CALLS],
            handed_out: 0,
            stopped: false,
            dropped: false,
            terminal: 0,
            new_round: false,
            answers: false,
        }
    }

    /// The machine of the process.
    pub(super) fn build(&self, stored: &Stored) -> Machine {
        let mut machine = stored.machine(self.from, self.resumes);
        for op in self.log.iter().take(self.logged) {
            self.feed(&mut machine, *op, stored);
        }
        machine
    }

    /// Whether a call has asked something in this process: the machine has a set of the questions.
    pub(super) fn has_asked(&self) -> bool {
        let log = self.log.iter().take(self.logged);
        log.into_iter().any(|op| matches!(op, Op::Wait(..)))
    }

    /// Appends all that is not the machine's, and that later steps or properties depend on.
    pub(super) fn encode(&self, out: &mut Encoding) {
        // Until a machine has acted, replies name the questions of the stored run.
        let from = (self.mode == Mode::Restored).then_some(self.from);
        let process = (
            self.mode,
            self.idle,
            self.stopped,
            self.dropped,
            self.terminal,
        );
        let handed = self.handed.get(..self.handed_out);
        (from, self.crashes, self.started, self.asked_by_tool).hash(out);
        (process, self.facts, handed, self.saved).hash(out);
    }

    /// What may happen next.
    pub(super) fn ops(&self, bounds: &Bounds, stored: &Stored) -> Vec<Op> {
        let mut ops = Vec::new();
        match self.mode {
            Mode::Ended => return vec![Op::Late],
            Mode::Suspended => return vec![Op::Resume, Op::Late],
            Mode::Ending => ops.extend([Op::Take, Op::Late]),
            Mode::Restored => {
                ops.push(Op::Take);
                let asked = self.from.map_or(&[][..], |from| stored.asked(from));
                for (at, asked) in (0..).zip(asked) {
                    ops.extend(
                        Answer::all(asked)
                            .iter()
                            .map(|answer| Op::Reply(at, *answer)),
                    );
                }
            }
            _ if !self.idle => ops.push(Op::Take),
            _ => {
                match self.mode {
                    _ if self.answers => ops.push(Op::TakeAnswers),
                    Mode::Model { announced } => self.before_model(announced, bounds, &mut ops),
                    Mode::Streaming { calls, text } => self.stream(calls, text, bounds, &mut ops),
                    Mode::Round { begun: false } => {
                        ops.extend([Op::Begin, Op::TakeBack, Op::RoundRefused]);
                        if self.new_round {
                            ops.push(Op::SkipRound);
                            self.gate(bounds, &mut ops);
                        }
                    }
                    Mode::Round { begun: true } => self.round(bounds, &mut ops),
                    Mode::MayFinish => {
                        ops.push(Op::Finish);
                        if !self.facts.continued {
                            ops.extend([Op::Continue, Op::Reject]);
                        }
                        self.gate(bounds, &mut ops);
                    }
                    _ => {}
                }
                if bounds.saves {
                    ops.push(Op::Save);
                }
                ops.push(Op::Late);
            }
        }
        if self.mode != Mode::Ending {
            ops.extend(STOPS);
        }
        if self.crashes < bounds.crashes && self.saved.is_some() {
            ops.push(Op::Crash);
        }
        ops
    }

    fn gate(&self, bounds: &Bounds, ops: &mut Vec<Op>) {
        if self.facts.gate_asks < bounds.gate_asks {
            ops.push(Op::GateAsk(self.facts.gate_asks));
        }
    }

    fn before_model(&self, announced: bool, bounds: &Bounds, ops: &mut Vec<Op>) {
        ops.extend([Op::ModelStarted(self.facts.step), Op::ModelFailed]);
        if !announced {
            if self.facts.step > 0 {
                ops.push(Op::StepStarted(self.facts.step));
            }
            if bounds.gate_asks > 0 {
                ops.push(Op::Finish);
            }
            self.gate(bounds, ops);
        }
    }

    fn stream(&self, calls: u8, text: bool, bounds: &Bounds, ops: &mut Vec<Op>) {
        ops.extend([Op::ModelFinish, Op::ModelEnded, Op::ModelFailed]);
        if calls == 0 && !text {
            ops.push(Op::Text);
        }
        let made: u8 = self.facts.made.iter().sum();
        if text || self.facts.rounds >= bounds.rounds || made + calls >= bounds.calls {
            return;
        }
        let first = usize::from(self.facts.rounds) * CALLS;
        let made = usize::from(calls);
        let mut kinds: Vec<Kind> = Vec::new();
        for answer in bounds.answers {
            let so_far = self.facts.calls.iter().skip(first).take(made);
            let fits = so_far
                .zip(*answer)
                .all(|(call, kind)| call.kind == Some(*kind));
            if let Some(kind) = answer.get(made)
                && fits
                && !kinds.contains(kind)
            {
                kinds.push(*kind);
            }
        }
        let call = self.facts.rounds * CALLS as u8 + calls;
        ops.extend(kinds.into_iter().map(|kind| Op::Call(call, kind)));
    }

    /// What a round service may report.
    fn round(&self, bounds: &Bounds, ops: &mut Vec<Op>) {
        ops.extend([Op::RoundEnded, Op::RoundFailed]);
        let asks: u8 = self.facts.calls.iter().map(|call| call.asks).sum();
        let held = self.facts.calls.iter().filter(|call| call.held).count();
        let may_hold = bounds.holds && held < usize::from(bounds.asks_in_run);
        for (index, handed) in (0..).zip(self.handed.iter().take(self.handed_out)) {
            let settle = |how| Op::Settle(index, how);
            let Some(call) = self.facts.calls.get(handed.call) else {
                continue;
            };
            let wait = |why| Op::Wait(index, why, handed.call as u8 * 2 + call.asks);
            let may_ask = call.asks < bounds.asks && asks < bounds.asks_in_run;
            if handed.done {
                ops.push(Op::Repeat(index));
                continue;
            }
            match handed.reply {
                _ if handed.refused => ops.push(settle(How::Failed)),
                Some((Answer::Deny, _)) => ops.push(settle(How::Denied)),
                Some((Answer::Cancel, _)) => ops.push(settle(How::Cancelled)),
                Some((Answer::Result, _)) => ops.push(settle(How::Done)),
                _ if handed.running => {
                    ops.extend([settle(How::Done), settle(How::Halt)]);
                    if bounds.failures {
                        ops.push(settle(How::Failed));
                    }
                    if bounds.tool_asks && may_ask {
                        ops.push(wait(Why::Tool));
                    }
                }
                // The ledger has the effect, so the tool does not run again.
                _ if handed.doubtful && self.may_have_run(handed.call) => {
                    ops.push(settle(How::Unknown));
                    if may_ask {
                        ops.push(wait(Why::Unknown));
                    }
                }
                reply => {
                    ops.push(Op::Start(index));
                    if may_ask {
                        ops.push(wait(Why::Gate));
                    }
                    if reply.is_none() {
                        ops.push(settle(How::Denied));
                        if may_hold && !handed.released && !call.held {
                            ops.push(wait(Why::Held));
                        }
                    }
                }
            }
        }
    }

    /// Whether a tool has begun to execute a call.
    pub(super) const fn may_have_run(&self, call: usize) -> bool {
        (self.started | self.asked_by_tool) & (1 << call) != 0
    }

    fn feed(&self, machine: &mut Machine, op: Op, stored: &Stored) -> Fed {
        let mut fed = Fed::default();
        match op {
            Op::Take => fed.take(machine),
            Op::TakeAnswers => fed.answers = machine.take_answers(),
            Op::Reply(at, answer) => {
                let asked = self.from.map_or(&[][..], |from| stored.asked(from));
                if let Some(asked) = asked.get(usize::from(at)) {
                    let reply = answer.reply(asked.id.clone());
                    fed.reply = Some(machine.reply(vec![reply], SystemTime::UNIX_EPOCH));
                }
            }
            Op::Repeat(index) => {
                machine.input(
                    Op::Settle(index, How::Unknown)
                        .input()
                        .unwrap_or(Input::RoundEnded),
                );
                machine.input(
                    Op::Wait(index, Why::Held, 0)
                        .input()
                        .unwrap_or(Input::RoundEnded),
                );
            }
            Op::Late => {
                for input in self.late().into_iter().filter_map(Op::input) {
                    machine.input(input);
                }
                if self.mode == Mode::Ending {
                    fed.take(machine);
                }
            }
            other => {
                if let Some(input) = other.input() {
                    machine.input(input);
                }
            }
        }
        fed
    }

    /// The inputs that no longer matter.
    fn late(&self) -> Vec<Op> {
        let step = self.facts.step;
        let model = [
            Op::ModelStarted(step),
            Op::Text,
            Op::ModelFinish,
            Op::ModelEnded,
            Op::ModelFailed,
        ];
        let round = [
            Op::Settle(0, How::Done),
            Op::Wait(0, Why::Gate, 0),
            Op::RoundRefused,
            Op::RoundFailed,
            Op::TakeBack,
            Op::SkipRound,
            Op::RoundEnded,
        ];
        let finish = [Op::Continue, Op::Reject];
        match self.mode {
            Mode::Model { .. } => [&round[..], &finish, &[Op::Text, Op::ModelEnded]].concat(),
            Mode::Streaming { .. } => {
                let rest = [
                    Op::ModelStarted(step),
                    Op::StepStarted(step),
                    Op::Finish,
                    Op::GateAsk(0),
                ];
                [&round[..], &finish, &rest].concat()
            }
            Mode::MayFinish => [&model[..], &round].concat(),
            Mode::Round { .. } => {
                let rest = [
                    Op::StepStarted(step),
                    Op::Finish,
                    Op::Settle(7, How::Done),
                    Op::Wait(7, Why::Gate, 0),
                ];
                [&model[..], &finish, &rest].concat()
            }
            _ => {
                let rest = [Op::StepStarted(step), Op::Finish, Op::GateAsk(0)];
                [&STOPS[..], &model, &round, &finish, &rest].concat()
            }
        }
    }

    /// Makes a step; `machine` is the machine of this world.
    pub(super) fn apply(
        &mut self,
        machine: &mut Machine,
        op: Op,
        stored: &mut Stored,
    ) -> Result<Fed, &'static str> {
        let fed = self.feed(machine, op, stored);
        let idle = self.idle;
        self.idle = false;
        match op {
            Op::Take => self.take(&fed, machine, stored)?,
            Op::StepStarted(_) => self.mode = Mode::Model { announced: true },
            Op::ModelStarted(_) => {
                self.mode = Mode::Streaming {
                    calls: 0,
                    text: false,
                };
            }
            Op::Text => {
                self.mode = Mode::Streaming {
                    calls: 0,
                    text: true,
                };
            }
            Op::Call(call, kind) => {
                if let Mode::Streaming { calls, .. } = &mut self.mode {
                    *calls += 1;
                }
                if let Some(call) = self.facts.calls.get_mut(usize::from(call)) {
                    call.kind = Some(kind);
                }
            }
            Op::ModelFinish => self.finish_step(),
            Op::GateAsk(_) => {
                self.facts.gate_asks += 1;
                self.mode = Mode::Open;
            }
            Op::TakeAnswers => {
                self.idle = true;
                for reply in fed.answers.iter().flat_map(|(_, replies)| replies) {
                    self.facts.delivered |= 1 << question(&reply.interrupt_id);
                }
            }
            Op::Begin => {
                self.idle = true;
                self.mode = Mode::Round { begun: true };
                for handed in self.handed.iter().take(self.handed_out) {
                    self.facts.delivered |= handed.reply.map_or(0, |(_, question)| 1 << question);
                }
                self.save(machine, stored)?;
            }
            Op::Save => {
                self.idle = idle;
                if machine.state().is_some() {
                    self.save(machine, stored)?;
                }
            }
            Op::Start(index) => {
                self.idle = true;
                if let Some((handed, call)) = self.handed_call(index) {
                    handed.running = true;
                    let is_effect = call.kind == Some(Kind::Effect);
                    self.started |= u8::from(is_effect) << self.handed_number(index);
                }
            }
            Op::Settle(index, how) => {
                self.idle = true;
                if let Some((handed, call)) = self.handed_call(index) {
                    handed.done = true;
                    call.reported = Some(how);
                }
            }
            Op::Wait(index, why, _) => {
                self.idle = true;
                if let Some((handed, call)) = self.handed_call(index) {
                    handed.done = true;
                    call.reply = None;
                    if why == Why::Held {
                        call.held = true;
                    } else {
                        call.asks += 1;
                        call.open = true;
                    }
                }
                if why == Why::Tool {
                    let call = 1 << self.handed_number(index);
                    self.started &= !call;
                    self.asked_by_tool |= call;
                }
            }
            Op::RoundEnded => {
                let halts = |call: &Call| call.reported == Some(How::Halt);
                self.facts.halted |= self.facts.calls.iter().any(halts);
                self.mode = Mode::Open;
                self.handed_out = 0;
            }
            Op::TakeBack | Op::SkipRound => {
                self.mode = Mode::Open;
                self.handed_out = 0;
            }
            Op::Continue | Op::Reject => {
                self.facts.continued = true;
                self.mode = Mode::Open;
            }
            Op::Crash | Op::Resume => {
                self.crashes += u8::from(op == Op::Crash);
                *machine = self.restore(stored);
            }
            Op::Reply(at, answer) => self.reply(at, answer, &fed, stored),
            Op::Late | Op::Repeat(_) => self.idle = idle,
            _ => self.stopped |= op.is_stop(),
        }
        if matches!(self.mode, Mode::Streaming { .. }) {
            self.idle = machine.is_reading();
        }
        self.dropped |= op == Op::Dropped;
        let has_ended = matches!(self.mode, Mode::Ending | Mode::Ended | Mode::Suspended);
        if machine.is_ended() && !has_ended {
            self.handed_out = 0;
            self.mode = if self.dropped {
                Mode::Ended
            } else {
                Mode::Ending
            };
        }
        if op == Op::Late && self.mode == Mode::Ending {
            self.take(&fed, machine, stored)?;
        }
        self.new_round = machine.is_round_new();
        self.answers = machine.answered().is_some();
        if !matches!(
            op,
            Op::Begin | Op::Start(_) | Op::Save | Op::Crash | Op::Resume
        ) {
            let entry = self.log.get_mut(self.logged).ok_or("a_log_has_room")?;
            *entry = op;
            self.logged += 1;
        }
        Ok(fed)
    }

    fn handed_number(&self, index: u8) -> usize {
        self.handed
            .get(usize::from(index))
            .map_or(0, |handed| handed.call)
    }

    fn handed_call(&mut self, index: u8) -> Option<(&mut Handed, &mut Call)> {
        let handed = self.handed.get_mut(usize::from(index))?;
        let call = self.facts.calls.get_mut(handed.call)?;
        Some((handed, call))
    }

    /// Notes what the driver did with the actions that it took.
    fn take(
        &mut self,
        fed: &Fed,
        machine: &Machine,
        stored: &mut Stored,
    ) -> Result<(), &'static str> {
        if self.mode == Mode::Restored {
            self.mode = Mode::Open;
        }
        self.idle = matches!(self.mode, Mode::Model { .. });
        let mut is_suspended = false;
        for action in &fed.actions {
            match action {
                Action::Emit(Event::ToolResult(result)) => {
                    if let Some(call) = self.facts.calls.get_mut(number(&result.call_id)) {
                        call.results += 1;
                    }
                }
                Action::Emit(Event::Finish(finish)) => {
                    self.terminal += 1;
                    if let (Outcome::Interrupted, Some(state)) = (&finish.outcome, &finish.state) {
                        is_suspended = true;
                        self.saved = Some((stored.save(state)?, self.facts));
                    }
                }
                Action::Fail(_) => self.terminal += 1,
                Action::CallModel { step, .. } => {
                    self.facts.step = u8::try_from(*step).unwrap_or(u8::MAX);
                    self.mode = Mode::Model { announced: false };
                    self.idle = true;
                }
                Action::RunTools { calls, .. } => {
                    self.hand_out(calls);
                    self.mode = Mode::Round { begun: false };
                    self.idle = true;
                }
                Action::MayFinish => {
                    self.mode = Mode::MayFinish;
                    self.idle = true;
                }
                _ => {}
            }
        }
        if machine.is_ended() {
            self.handed_out = 0;
            self.mode = if is_suspended {
                Mode::Suspended
            } else {
                Mode::Ended
            };
        }
        Ok(())
    }

    fn hand_out(&mut self, calls: &[RoundCall]) {
        self.handed_out = calls.len();
        for (handed, call) in self.handed.iter_mut().zip(calls) {
            let reply = call.state.stage.replies().first();
            *handed = Handed {
                call: number(&call.call.id),
                reply: reply.and_then(|it| Some((Answer::read(it)?, question(&it.interrupt_id)))),
                doubtful: call.is_recovered(),
                repeated: matches!(&call.state.stage, CallStage::Resumed(it) if it.interrupted),
                refused: call.refusal().is_some(),
                released: matches!(call.state.stage, CallStage::Released { .. }),
                running: false,
                done: false,
            };
        }
    }

    /// Notes that the model has finished its answer.
    fn finish_step(&mut self) {
        if let Mode::Streaming { calls, .. } = self.mode
            && calls > 0
        {
            let round = usize::from(self.facts.rounds);
            if let Some(made) = self.facts.made.get_mut(round) {
                *made = calls;
            }
            for call in self
                .facts
                .calls
                .iter_mut()
                .skip(round * CALLS)
                .take(calls.into())
            {
                call.open = call.kind == Some(Kind::Client);
            }
            self.facts.rounds += 1;
        }
        self.mode = Mode::Open;
    }

    fn reply(&mut self, at: u8, answer: Answer, fed: &Fed, stored: &Stored) {
        let asked = self.from.map_or(&[][..], |from| stored.asked(from));
        let (Some(asked), Some(Ok(()))) = (asked.get(usize::from(at)), &fed.reply) else {
            return;
        };
        self.facts.accepted |= 1 << question(&asked.id);
        let call = asked
            .call_id
            .as_ref()
            .map_or_else(|| asked_about(question(&asked.id)), |id| Some(number(id)));
        if let Some(call) = call.and_then(|call| self.facts.calls.get_mut(call)) {
            call.open = false;
            call.reply = Some(answer);
        }
    }

    fn save(&mut self, machine: &Machine, stored: &mut Stored) -> Result<(), &'static str> {
        let state = machine.state().ok_or("a_round_can_be_stored")?;
        self.saved = Some((stored.save(&state)?, self.facts));
        Ok(())
    }

    /// Ends the process, and starts one that continues with the stored run.
    fn restore(&mut self, stored: &Stored) -> Machine {
        if let Some((number, facts)) = self.saved {
            let new = Self::new(self.resumes);
            *self = Self {
                from: Some(number),
                facts,
                mode: Mode::Restored,
                saved: self.saved,
                crashes: self.crashes,
                started: self.started,
                asked_by_tool: self.asked_by_tool,
                ..new
            };
        }
        stored.machine(self.from, self.resumes)
    }
}

/// The call that asked a question; a step gate's is about none.
const fn asked_about(question: u8) -> Option<usize> {
    match question {
        0..16 => Some(question as usize / 2),
        _ => None,
    }
}

impl Fed {
    /// Takes an action; all of them, once the run has ended.
    fn take(&mut self, machine: &mut Machine) {
        while let Some(action) = machine.action() {
            self.actions.push(action);
            if !machine.is_ended() {
                return;
            }
        }
    }
}
