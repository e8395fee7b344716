//! Any order of settling, suspending, replying and crashing.

use super::*;

/// A source of choices.
struct Choices {
    all: Vec<u8>,
    at: usize,
    mixed: u64,
}

impl Choices {
    fn new(all: Vec<u8>) -> Self {
        Self {
            all,
            at: 0,
            mixed: 0,
        }
    }

    fn of(&mut self, n: usize) -> usize {
        // Mixed with earlier choices, so that no choice repeats forever.
        let chosen = u64::from(self.all[self.at % self.all.len()]);
        self.at += 1;
        self.mixed = self.mixed.wrapping_add(chosen * 2 + 1);
        self.mixed = self.mixed.wrapping_mul(6_364_136_223_846_793_005);
        usize::try_from(self.mixed >> 40).unwrap() % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.of(n) == 0
    }
}

/// The expected state of one call of the open round.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// Will be handed out.
    Next(Option<Answered>),
    Running,
    Recovered,
    Waits(Suspension),
    Settled(ToolOutcome),
}

/// A run and its expected state.
struct World {
    machine: Machine,
    rules: RunLimits,
    choices: Choices,
    // The open round.
    ids: Vec<String>,
    names: Vec<&'static str>,
    refused: Vec<Option<Refusal>>,
    calls: Vec<Known>,
    // Whether each call was running when its process ended.
    recovered: Vec<bool>,
    asked: u32,
    waited: HashMap<String, u32>,
    // The run.
    steps: u32,
    free: u32,
    total: u32,
    of_tool: u32,
}

impl World {
    fn new(rules: RunLimits, choices: Vec<u8>) -> Self {
        Self {
            machine: Machine::new(Transcript::new(), rules.clone()),
            rules,
            choices: Choices::new(choices),
            ids: Vec::new(),
            names: Vec::new(),
            refused: Vec::new(),
            calls: Vec::new(),
            recovered: Vec::new(),
            asked: 0,
            waited: HashMap::new(),
            steps: 0,
            free: 0,
            total: 0,
            of_tool: 0,
        }
    }

    fn run(mut self) {
        let drained = drain(&mut self.machine);
        assert_eq!(drained.step, Some(0));
        loop {
            let drained = self.step();
            let Some(drained) = drained else { return };
            if let Some(finish) = &drained.finish {
                self.check_end(finish);
                return;
            }
            assert_eq!(drained.step, Some(self.steps), "counted once");
            assert!(self.steps - self.free < self.rules.steps);
        }
    }

    fn check_end(&self, finish: &Finish) {
        let usage = u64::from(self.steps);
        assert_eq!(finish.usage, Usage::new(10 * usage, usage), "counted once");
        let over = self.rules.calls.is_some_and(|limit| self.total > limit);
        match &finish.outcome {
            Outcome::Completed => assert!(self.calls.is_empty()),
            Outcome::CallLimit => assert!(over),
            Outcome::StepLimit => {
                assert!(!over);
                assert_eq!(self.steps - self.free, self.rules.steps);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Runs one step; `None` if the run was cancelled.
    fn step(&mut self) -> Option<Drained> {
        let n = match self.steps {
            0..6 => self.choices.of(6),
            _ => 0,
        };
        self.ids = (0..n).map(|at| format!("s{}c{at}", self.steps)).collect();
        let names: Vec<&'static str> = (0..n)
            .map(|_| ["act", "look"][self.choices.of(2)])
            .collect();
        self.count(&names);
        self.calls = vec![Known::Next(None); n];
        self.recovered = vec![false; n];
        self.names.clone_from(&names);
        let calls = self.ids.iter().map(String::as_str).zip(names);
        answer(&mut self.machine, calls.collect::<Vec<_>>());
        self.steps += 1;
        let mut drained = drain(&mut self.machine);
        if n == 0 {
            return Some(drained);
        }
        loop {
            if drained.round.is_some() {
                self.check_handed_out(&drained);
                if !self.settle(drained.round.as_deref().unwrap_or_default()) {
                    return None;
                }
                drained = drain(&mut self.machine);
                continue;
            }
            let Some(finish) = &drained.finish else { break };
            if finish.outcome != Outcome::Interrupted {
                break;
            }
            self.check_open(finish);
            let state = finish.state.as_deref().unwrap();
            self.machine = Machine::restore(round_trip(state), self.rules.clone());
            assert!(is_resumed(&mut self.machine));
            self.reply();
            drained = drain(&mut self.machine);
        }
        self.check_closed(&drained);
        Some(drained)
    }

    /// Counts the calls of a new round against the limits.
    fn count(&mut self, names: &[&str]) {
        self.refused.clear();
        for (at, name) in (1..).zip(names) {
            self.total += 1;
            let limits = [
                (self.rules.calls, self.total, LimitScope::Run),
                (self.rules.calls_per_round, at, LimitScope::Round),
            ];
            let mut over = limits.into_iter().find_map(|(limit, count, of)| {
                let calls = limit.filter(|limit| count > *limit)?;
                Some(Refusal::Limit { calls, of })
            });
            if *name == "act"
                && let Some((_, calls)) = self.rules.calls_per_tool.first()
            {
                self.of_tool += 1;
                if self.of_tool > *calls {
                    let of = LimitScope::Tool;
                    over = over.or(Some(Refusal::Limit { calls: *calls, of }));
                }
            }
            self.refused.push(over);
        }
    }

    /// Checks that exactly the expected calls were handed out.
    fn check_handed_out(&mut self, drained: &Drained) {
        let calls = drained.round.as_deref().unwrap();
        let positions: Vec<usize> = calls.iter().map(|call| call.position).collect();
        let may_be = |known: &Known| matches!(known, Known::Next(_) | Known::Recovered);
        let expected: Vec<usize> = (0..self.calls.len())
            .filter(|at| may_be(&self.calls[*at]))
            .collect();
        assert_eq!(positions, expected);
        for call in calls {
            let known = &mut self.calls[call.position];
            assert_eq!(call.call.id.as_str(), self.ids[call.position]);
            assert_eq!(call.refusal(), self.refused[call.position].as_ref());
            assert_eq!(call.is_recovered(), self.recovered[call.position]);
            if let Known::Next(answered) = known {
                assert_eq!(Answered::of(call), *answered);
            }
            *known = Known::Running;
        }
        assert!(drained.results().is_empty(), "the round is open");
    }

    /// Acts as a round service on `calls`; returns whether the run continues.
    fn settle(&mut self, calls: &[RoundCall]) -> bool {
        let mut left: Vec<usize> = (0..calls.len()).collect();
        // Whether each call had only waited for other calls before.
        let mut held = Vec::new();
        for call in calls {
            held.push(matches!(call.state.stage, CallStage::Released { .. }));
        }
        while !left.is_empty() {
            if self.choices.one_in(24) {
                self.cancel();
                return false;
            }
            if self.choices.one_in(16) {
                self.crash();
                return true;
            }
            let index = left.swap_remove(self.choices.of(left.len()));
            self.settle_one(index, &calls[index]);
            if self.calls[calls[index].position] == Known::Running {
                continue;
            }
            // Further reports about a settled call are ignored.
            settle(&mut self.machine, index, ToolOutcome::done("twice"));
            wait(&mut self.machine, index, Suspension::held());
            assert!(self.machine.action().is_none());
        }
        self.machine.input(Input::RoundEnded);
        let asks = |known: &Known| matches!(known, Known::Waits(pending) if !pending.is_held());
        let asks = self.calls.iter().any(asks);
        let is_settled = |call: &RoundCall| matches!(self.calls[call.position], Known::Settled(_));
        let continues = asks || calls.iter().any(is_settled);
        let is_indeterminate: Vec<bool> = (0..self.calls.len())
            .map(|at| self.is_indeterminate(at))
            .collect();
        for (call, held) in calls.iter().zip(held) {
            let known = &mut self.calls[call.position];
            match known {
                Known::Running => *known = Known::Settled(ToolOutcome::unknown("silent")),
                Known::Waits(pending) if pending.is_held() && held && !continues => {
                    *known = Known::Settled(match is_indeterminate[call.position] {
                        true => ToolOutcome::unknown("held forever"),
                        false => ToolOutcome::failed("held forever"),
                    });
                }
                _ => {}
            }
        }
        self.release();
        true
    }

    /// Whether a call may have executed without a recorded outcome.
    fn is_indeterminate(&self, at: usize) -> bool {
        self.recovered[at] && self.names[at] != "look"
    }

    /// Resumes calls that waited for other calls, if none of those waits any more.
    fn release(&mut self) {
        let asks = |known: &Known| matches!(known, Known::Waits(pending) if !pending.is_held());
        if self.calls.iter().any(asks) {
            return;
        }
        for known in &mut self.calls {
            if let Known::Waits(pending) = known {
                *known = Known::Next(Some(Answered::new(pending.clone(), Vec::new())));
            }
        }
    }

    fn settle_one(&mut self, index: usize, call: &RoundCall) {
        let known = call.position;
        if let Some(refusal) = call.refusal() {
            let outcome = refusal.outcome(&call.call);
            settle(&mut self.machine, index, outcome.clone());
            self.calls[known] = Known::Settled(outcome);
            return;
        }
        if let Some(Answered {
            on: pending,
            replies,
            ..
        }) = Answered::of(call)
        {
            let replied = |asked: &Interrupt| replies.iter().any(|r| r.interrupt_id == asked.id);
            let open: Vec<_> = pending
                .interrupts
                .iter()
                .filter(|i| !replied(i))
                .cloned()
                .collect();
            if !open.is_empty() {
                let pending = Suspension::new(open);
                wait(&mut self.machine, index, pending.clone());
                self.calls[known] = Known::Waits(pending);
                return;
            }
        }
        let waited = self.waited.entry(call.call.id.to_string()).or_default();
        let how = match *waited {
            0..3 => self.choices.of(10),
            _ => 6 + self.choices.of(4),
        };
        let outcome = match how {
            0..3 => {
                *waited += 1;
                let mut pending = Suspension::new(Vec::new());
                for _ in 0..=self.choices.of(3) {
                    self.asked += 1;
                    let id = InterruptId::new(format!("i{}", self.asked));
                    let mut asked =
                        Interrupt::new(id, interrupt::TOOL_CALL).about(call.call.id.clone());
                    if self.choices.one_in(4) {
                        asked = asked.until(now() + Duration::from_secs(1));
                    }
                    pending.interrupts.push(asked);
                }
                if self.choices.one_in(4) {
                    pending = pending.together();
                }
                pending = pending.with_state(json!({"asked": self.asked}));
                wait(&mut self.machine, index, pending.clone());
                self.calls[known] = Known::Waits(pending);
                return;
            }
            3 => {
                *waited += 1;
                wait(&mut self.machine, index, Suspension::held());
                self.calls[known] = Known::Waits(Suspension::held());
                return;
            }
            // No report.
            4 => return,
            5 => ToolOutcome::failed("oh"),
            6 => ToolOutcome::denied("no"),
            7 => ToolOutcome::cancelled("well"),
            8 => ToolOutcome::done("yes").free_of_charge(),
            _ => ToolOutcome::done("yes"),
        };
        settle(&mut self.machine, index, outcome.clone());
        self.calls[known] = Known::Settled(outcome);
    }

    /// Ends the process and restores the run from its stored state.
    fn crash(&mut self) {
        let state = self.machine.state().expect("no model is being read");
        self.machine = Machine::restore(round_trip(&state), self.rules.clone());
        assert!(is_resumed(&mut self.machine));
        self.machine.reply(Vec::new(), now()).unwrap();
        for (at, known) in self.calls.iter_mut().enumerate() {
            if *known == Known::Running {
                *known = Known::Recovered;
                self.recovered[at] = self.refused[at].is_none();
            }
        }
        self.release();
    }

    /// Cancels the run.
    fn cancel(&mut self) {
        self.machine.input(Input::Cancel(CancelReason::User));
        let drained = drain(&mut self.machine);
        assert!(drained.round.is_none() && drained.step.is_none());
        assert!(matches!(drained.outcome(), Some(Outcome::Aborted { .. })));
        let results = drained.results();
        assert_eq!(results.len(), self.ids.len());
        for (at, result) in results.iter().enumerate() {
            assert_eq!(result.call_id.as_str(), self.ids[at]);
            let status = result.outcome.status;
            match &self.calls[at] {
                Known::Settled(outcome) => assert_eq!(status, outcome.status),
                _ if self.is_indeterminate(at) => assert_eq!(status, ToolStatus::Unknown),
                Known::Running => {
                    assert!(matches!(
                        status,
                        ToolStatus::Unknown | ToolStatus::Cancelled
                    ));
                }
                _ => assert_eq!(status, ToolStatus::Cancelled),
            }
        }
    }

    /// Checks that an interrupted run has exactly the expected interrupts.
    fn check_open(&self, finish: &Finish) {
        let mut asked = Vec::new();
        for known in &self.calls {
            if let Known::Waits(pending) = known {
                asked.extend(&pending.interrupts);
            }
        }
        assert!(!asked.is_empty());
        assert_eq!(finish.interrupts(), asked);
        let open = finish.state.as_ref().unwrap().open_round().unwrap();
        assert_eq!(open.calls().len(), self.ids.len());
        for ((_, settled), known) in open.calls().zip(&self.calls) {
            match known {
                Known::Settled(outcome) => {
                    assert_eq!(settled.unwrap().status, outcome.status);
                }
                Known::Waits(_) => assert_eq!(settled, None),
                other => panic!("{other:?} when the run was interrupted"),
            }
        }
    }

    /// Replies to some interrupts, after invalid replies that must be rejected.
    fn reply(&mut self) {
        let mut asked: Vec<(usize, Interrupt)> = Vec::new();
        let mut together = false;
        for (at, known) in self.calls.iter().enumerate() {
            if let Known::Waits(pending) = known {
                together |= pending.together;
                asked.extend(pending.interrupts.iter().cloned().map(|i| (at, i)));
            }
        }
        let before = self.machine.state().unwrap();
        self.reply_invalidly(&asked, together);
        assert_eq!(self.machine.state().unwrap(), before, "nothing has changed");

        let all = together && !self.choices.one_in(4);
        let mut replies = Vec::new();
        let mut answered: HashMap<usize, Vec<Reply>> = HashMap::new();
        for (at, asked) in &asked {
            if all || (!together && !self.choices.one_in(3)) {
                let id = asked.id.clone();
                let reply = match self.choices.of(4) {
                    0 => Reply::deny(id, "no"),
                    1 => Reply::cancel(id),
                    2 => Reply::answer(id, json!({"a": 1})),
                    _ => Reply::approve(id),
                };
                replies.push((*at, reply));
            }
        }
        if self.choices.one_in(2) {
            replies.reverse();
        }
        for (at, reply) in &replies {
            answered.entry(*at).or_default().push(reply.clone());
        }
        let replies: Vec<Reply> = replies.into_iter().map(|(_, reply)| reply).collect();
        self.machine.reply(replies.clone(), now()).unwrap();
        if let Some(first) = replies.first() {
            let again = self.machine.reply(vec![first.clone()], now());
            assert!(again.is_err(), "a reply is accepted once");
        }
        for (at, replies) in answered {
            if let Known::Waits(pending) = &self.calls[at] {
                let answered = Answered::new(pending.clone(), replies);
                self.calls[at] = Known::Next(Some(answered));
            }
        }
        self.release();
    }

    fn reply_invalidly(&mut self, asked: &[(usize, Interrupt)], together: bool) {
        let good: Vec<Reply> = asked
            .iter()
            .map(|(_, i)| Reply::approve(i.id.clone()))
            .collect();
        let at = self.choices.of(good.len());
        let mut bad = vec![good.clone(); 5];
        // An unknown interrupt, together with valid replies.
        bad[0].push(Reply::approve(InterruptId::new("unknown")));
        // A duplicate reply.
        bad[1].push(Reply::cancel(good[at].interrupt_id.clone()));
        // An invalid payload.
        bad[2][at] = Reply::resolve(good[at].interrupt_id.clone(), json!({"approved": "yes"}));
        bad[3][at].payload = None;
        // Invalid arguments.
        let edited = Reply::approve_edited(good[at].interrupt_id.clone(), json!([]));
        bad[4][at] = edited;
        for bad in bad {
            assert!(self.machine.reply(bad, now()).is_err());
        }
        if together && good.len() > 1 {
            let mut rest = good.clone();
            let missing = rest.remove(at).interrupt_id;
            let refused = self.machine.reply(rest, now());
            assert_eq!(refused, Err(ReplyError::Missing(missing)));
        }
        if asked.iter().any(|(_, asked)| asked.expires_at.is_some()) {
            let late = now() + Duration::from_secs(1);
            let refused = self.machine.reply(good, late);
            assert!(matches!(refused, Err(ReplyError::Expired(_))));
        }
    }

    /// Checks that a closed round has one result for each call, with the expected outcome.
    fn check_closed(&mut self, drained: &Drained) {
        let results = drained.results();
        assert_eq!(results.len(), self.ids.len());
        let mut free = true;
        for (result, (id, known)) in results.iter().zip(self.ids.iter().zip(&self.calls)) {
            let Known::Settled(outcome) = known else {
                panic!("{id} is closed as {result:?}, but was {known:?}");
            };
            free &= outcome.free;
            assert_eq!(result.call_id.as_str(), id);
            assert_eq!(result.outcome.status, outcome.status);
        }
        // At most as many steps are free as are charged, so that a run ends.
        self.free = (self.free + u32::from(free)).min(self.rules.steps);
        assert_eq!(self.machine.transcript().last().unwrap().results(), results);
    }
}

fn limits() -> impl Strategy<Value = RunLimits> {
    let limit = || prop_oneof![3 => Just(None), 1 => (0..9_u32).prop_map(Some)];
    (1..8_u32, limit(), limit(), limit()).prop_map(|(steps, calls, per_round, per_tool)| {
        let mut limits = rules();
        limits.steps = steps;
        limits.calls = calls;
        limits.calls_per_round = per_round;
        limits.calls_per_tool = per_tool
            .map(|calls| ("act".into(), calls))
            .into_iter()
            .collect();
        limits
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_round_resumes_according_to_its_replies(
        rules in limits(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        World::new(rules, choices).run();
    }
}
