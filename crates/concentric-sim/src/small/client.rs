//! The clients of a world: users, who send requests and repeat them, and people, who answer the questions of runs.

use super::{
    agent::Script,
    history::What,
    outside::Effects,
    store::{Database, Row, text},
    time::{Act, ProcessClock, Time, lock},
    world::{Answer, Asks, Request},
};
use crate::dice::Dice;
use concentric_core::{
    Reply,
    context::Clock,
    interrupt,
    store::{RunStatus, RunStore},
};
use futures_util::future::join;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::oneshot::{self, error::TryRecvError};

/// What the clients share.
pub(super) struct Clients {
    pub(super) time: Time,
    pub(super) database: Database,
    pub(super) effects: Effects,
    pub(super) clock: ProcessClock,
    pub(super) dice: Mutex<Dice>,
    pub(super) workers: usize,
    pub(super) lease: u64,
    /// The longest time in milliseconds after which a person replies.
    pub(super) thinks: u64,
    /// Whether a user may send a request beside the last one of the conversation.
    pub(super) overlaps: bool,
    pub(super) requests: AtomicU64,
    /// The conversations that have not ended.
    pub(super) open: AtomicUsize,
    /// The scripts of all requests, by their conversations.
    pub(super) scripts: Mutex<BTreeMap<String, Vec<Script>>>,
}

impl Clients {
    fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut lock(&self.dice))
    }

    async fn sleep(&self, millis: u64) {
        self.clock.sleep(Duration::from_millis(millis)).await;
    }

    fn request(&self) -> u64 {
        self.requests.fetch_add(1, Relaxed)
    }

    /// Sends a request to any worker.
    fn send(&self, request: Request) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let workers = self.workers as u64;
        let (at, after) = self.dice(|dice| (dice.below(workers), dice.range(1, 5)));
        let at = usize::try_from(at).unwrap_or_default();
        let act = Act::World(Box::new(move |hosts| hosts.receive(at, request, sender)));
        self.time.after(after, None, act);
        answer
    }

    /// Leads a conversation of some runs to its end.
    pub(super) async fn converse(self: Arc<Self>, thread: String, turns: u64) {
        let first = self.dice(|dice| dice.below(8_000));
        self.sleep(first).await;
        let mut rest = 0..turns;
        while let Some(turn) = rest.next() {
            let lead = async |turn, after| {
                self.sleep(after).await;
                self.lead(&thread, &format!("{thread}.{turn}")).await;
            };
            let is_beside = self.overlaps && self.dice(|dice| dice.one_in(2));
            match is_beside.then(|| rest.next()).flatten() {
                Some(next) => {
                    let after = self.dice(|dice| dice.below(4_000));
                    join(lead(turn, 0), lead(next, after)).await;
                }
                None => self.lead(&thread, &format!("{thread}.{turn}")).await,
            }
            let pause = self.dice(|dice| dice.below(6_000));
            self.sleep(pause).await;
        }
        self.open.fetch_sub(1, Relaxed);
    }

    /// Sends the request of a user until a run for it has ended.
    async fn lead(&self, thread: &str, client: &str) {
        let (steps, variant) = self.dice(|dice| (dice.range(1, 4), dice.next() >> 32));
        let mut tags: Vec<String> = Vec::new();
        for attempt in 0..40 {
            // One in six requests is sent twice at the same time.
            let times = self.dice(|dice| if dice.one_in(6) { 2 } else { 1 });
            let mut answers = Vec::new();
            for copy in ["a", "b"].into_iter().take(times) {
                let script = Script {
                    tag: format!("{client}.{attempt}{copy}"),
                    steps: usize::try_from(steps).unwrap_or(1),
                    variant,
                };
                let id = self.request();
                self.time.note(None, What::Sent);
                tags.push(script.tag.clone());
                let request = Request {
                    id,
                    thread: thread.to_owned(),
                    client: client.to_owned(),
                    tag: script.tag.clone(),
                    what: Asks::Start {
                        text: script.text(),
                    },
                    cut: self.dice(|dice| dice.one_in(12).then(|| dice.below(3_000))),
                };
                let mut scripts = lock(&self.scripts);
                scripts.entry(thread.to_owned()).or_default().push(script);
                drop(scripts);
                answers.push((Some(self.send(request)), None));
            }
            loop {
                let pause = self.dice(|dice| dice.range(200, 600));
                self.sleep(pause).await;
                for (waiting, answer) in &mut answers {
                    match waiting.as_mut().map(oneshot::Receiver::try_recv) {
                        Some(Ok(answered)) => (*waiting, *answer) = (None, Some(answered)),
                        Some(Err(TryRecvError::Closed)) => {
                            (*waiting, *answer) = (None, Some(Answer::Failed));
                        }
                        Some(Err(TryRecvError::Empty)) | None => {}
                    }
                }
                let rows = || tags.iter().filter_map(|tag| self.database.row(tag));
                let is_open = rows().any(|row| row.status != RunStatus::Ended);
                if is_open || answers.iter().any(|(waiting, _)| waiting.is_some()) {
                    continue;
                }
                let is_finished =
                    |answer: &Option<Answer>| matches!(answer, Some(Answer::Finished(_)));
                if rows().next().is_some() || answers.iter().any(|(_, answer)| is_finished(answer))
                {
                    return;
                }
                break;
            }
            let pause = self.dice(|dice| dice.below(1_000 * (attempt + 1)));
            self.sleep(pause).await;
        }
    }

    /// Answers the questions of all runs, and releases those that were quarantined.
    pub(super) async fn approve(self: Arc<Self>) {
        // The times of the next reply.
        let mut due: BTreeMap<String, u64> = BTreeMap::new();
        for tick in 0_u64.. {
            self.sleep(250).await;
            let now = self.time.now();
            for (tag, row) in self.database.open() {
                if row.status != RunStatus::Suspended {
                    due.remove(&tag);
                    if tick.is_multiple_of(8) {
                        self.release(&row);
                    }
                    continue;
                }
                let thinks = || now + self.dice(|dice| dice.below(self.thinks + 1));
                let at = due.entry(tag.clone()).or_insert_with(thinks);
                if *at <= now {
                    // A reply may be lost.
                    *at = now + 2 * self.lease;
                    self.reply(&tag, &row);
                }
            }
        }
    }

    fn release(&self, row: &Row) {
        let released = self.database.store.release(row.key.clone());
        if self.database.read(released).is_ok_and(|it| it) {
            self.database.cure(Some(&row.key.run));
            let run = row.key.run.to_string();
            self.time.note(None, What::Released { run });
        }
    }

    /// Answers all interrupts of a waiting run.
    fn reply(&self, tag: &str, row: &Row) {
        let Ok(record) = self.database.read(self.database.store.get(row.key.clone())) else {
            return;
        };
        if record.status != RunStatus::Suspended {
            return;
        }
        let (mut replies, mut others) = (Vec::new(), Vec::new());
        let mut is_twice = false;
        for question in record.state.interrupts() {
            let id = question.id.clone();
            if question.reason == interrupt::UNKNOWN_EFFECT {
                let call = question.call_id.clone();
                let call = call.map(|call| call.to_string()).unwrap_or_default();
                let key = id.as_str().strip_suffix("#effect").unwrap_or(id.as_str());
                let seen = match self.effects.inquire(&call, key) {
                    true => format!("{call}: seen done"),
                    false => format!("{call}: seen not done"),
                };
                replies.push(Reply::answer(id.clone(), seen.clone()));
                others.push(Reply::answer(id, seen));
                continue;
            }
            let (yes, no) = (Reply::approve(id.clone()), Reply::deny(id, "no"));
            let (one, other) = match self.dice(|dice| dice.below(8)) {
                0..=3 => (yes.clone(), yes),
                4..=5 => (no.clone(), no),
                // Two people decide differently.
                _ => {
                    is_twice = true;
                    (yes, no)
                }
            };
            replies.push(one);
            others.push(other);
        }
        // One in four replies is sent twice, to any workers.
        is_twice |= self.dice(|dice| dice.one_in(4));
        for replies in [Some(replies), is_twice.then_some(others)]
            .into_iter()
            .flatten()
        {
            let id = self.request();
            let texts: Vec<_> = replies.iter().map(text).collect();
            let told = format!("{tag} is replied to with {texts:?}");
            self.time.note(None, What::Told(told));
            drop(self.send(Request {
                id,
                thread: row.key.thread.to_string(),
                client: tag.to_owned(),
                tag: tag.to_owned(),
                what: Asks::Reply { replies },
                cut: self.dice(|dice| dice.one_in(20).then(|| dice.below(2_000))),
            }));
        }
    }
}
