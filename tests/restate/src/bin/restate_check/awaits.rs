//! Runs that await their replies in their invocations.

use super::{Place, code, completed, post, retried, serve};
use concentric_core::{
    CancelReason, ErrorKind, Event, Interrupt, InterruptId, Outcome, Reply, interrupt,
};
use concentric_restate::{ReplyInput, RestateAgents, RunEvents, RunInput, RunOutput, Waits};
use concentric_restate_tests::agent::{Traced, agent};
use concentric_restate_tests::servers::Options;
use concentric_store::MemoryStore;
use std::time::{Duration, Instant};
use tokio::time::sleep;

impl Place {
    /// Waits until the invocation of a run has the status, and returns its id.
    async fn invocation(&self, thread: &str, status: &str) -> String {
        let sql = format!(
            "SELECT id, status FROM sys_invocation WHERE target_service_key = '{thread}' AND target_handler_name = 'run'"
        );
        for _ in 0..2_000 {
            let rows = self.restate.query(&sql).await;
            assert!(rows.len() <= 1, "{rows:?}");
            if rows.first().is_some_and(|row| row["status"] == status) {
                return rows[0]["id"].as_str().unwrap().to_owned();
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("the invocation of {thread} is not {status}");
    }

    /// The id of the awakeable of a run that waits.
    async fn awakeable(&self, thread: &str) -> String {
        let sql = format!(
            "SELECT value_utf8 FROM state WHERE service_key = '{thread}' AND key = 'waiting'"
        );
        let rows = self.restate.query(&sql).await;
        let waiting: serde_json::Value =
            serde_json::from_str(rows[0]["value_utf8"].as_str().unwrap()).unwrap();
        waiting["awaited"]["awakeable"].as_str().unwrap().to_owned()
    }

    async fn start(&self, thread: &str, script: &str) -> Vec<Interrupt> {
        let input = RunInput::user(script);
        retried(|| self.client.start(thread, "run", &input)).await;
        self.interrupts(thread).await
    }

    /// The result of a run that was started.
    async fn result(&self, thread: &str) -> RunOutput {
        let input = RunInput::default();
        retried(|| self.client.run(thread, "run", &input)).await
    }

    async fn approve(&self, thread: &str, key: &str, asked: &Interrupt) -> RunOutput {
        let input = ReplyInput::new(vec![Reply::approve(asked.id.clone())]);
        retried(|| self.client.reply(thread, key, &input)).await
    }
}

/// One invocation from the start of a run to its end, whatever happens while it waits.
pub(super) async fn awaits() -> String {
    let mut place = Place::awaiting().await;
    let deadline = Duration::from_secs(4);
    let options = Options {
        inactivity: Duration::from_millis(200),
        deadline,
        ..Options::default()
    };
    // A run that began to wait before the service awaited replies.
    place.waits = Waits::Return;
    let old = place.worker(options.clone()).await;
    let early = place
        .client
        .run("early", "run", &RunInput::user("refund"))
        .await;
    place.waits = Waits::Await;
    let worker = place.worker(options).await;
    let early = place
        .approve("early", "r", &early.unwrap().interrupts[0])
        .await;
    completed("early", &early);
    drop(old);

    // Suspended, without a worker, and across a restart of the server; for longer than the deadline of its work.
    let began = Instant::now();
    let asked = place.start("a", "refund;look").await;
    let id = place.invocation("a", "suspended").await;
    let secret = place.awakeable("a").await;
    let state = place.client.state("a").await.unwrap();
    assert!(!serde_json::to_string(&state).unwrap().contains(&secret));
    worker.hold(true);
    worker.kill();
    worker.ended().await;
    place.restate.restart().await;
    let input = ReplyInput::new(vec![Reply::approve(asked[0].id.clone())]);
    retried(|| place.client.start_reply("a", "r", &input)).await;
    sleep(deadline.saturating_sub(began.elapsed())).await;
    assert_eq!(place.world.count("a", "effect refund_0_0"), 0);
    worker.hold(false);
    let (output, replied) = (
        place.result("a").await,
        place.approve("a", "r", &asked[0]).await,
    );
    completed("a", &output);
    completed("a", &replied);
    assert_eq!((&replied.run, &replied.text), (&output.run, &output.text));
    assert_eq!(place.invocation("a", "completed").await, id);
    for line in [
        "model 0",
        "model 1",
        "model 2",
        "effect refund_0_0",
        "tool look_1_0",
    ] {
        assert_eq!(place.world.count("a", line), 1, "{line}");
    }
    assert!(!serde_json::to_string(&output).unwrap().contains(&secret));
    // A repeated reply has the result of the first one; another one is too late.
    assert_eq!(place.approve("a", "r", &asked[0]).await.run, output.run);
    let late = place.approve("a", "r2", &asked[0]).await;
    assert_eq!(code(&late), Some("run_ended"));

    // A round with two approvals, one after the other, and at once; and two replies to one question.
    let asked = place.start("b", "refund+refund").await;
    let first = place.approve("b", "r0", &asked[0]).await;
    assert_eq!(first.outcome, Some(Outcome::Interrupted));
    assert_eq!(first.interrupts, asked[1..]);
    let again = place.approve("b", "r1", &asked[0]).await;
    assert_eq!(
        again.error.as_ref().map(|it| it.kind),
        Some(ErrorKind::InvalidRequest)
    );
    completed("b", &place.approve("b", "r2", &asked[1]).await);
    completed("b", &place.result("b").await);
    for at in 0..8 {
        let thread = format!("c{at}");
        let asked = place.start(&thread, "refund+refund").await;
        let ended = tokio::join!(
            place.approve(&thread, "r0", &asked[0]),
            place.approve(&thread, "r1", &asked[1])
        );
        let outcomes = [ended.0.outcome, ended.1.outcome];
        assert!(
            outcomes.contains(&Some(Outcome::Interrupted))
                && outcomes.contains(&Some(Outcome::Completed)),
            "{thread}: {outcomes:?}"
        );
        completed(&thread, &place.result(&thread).await);
        let thread = format!("d{at}");
        let asked = place.start(&thread, "refund").await;
        let ended = tokio::join!(
            place.approve(&thread, "r0", &asked[0]),
            place.approve(&thread, "r1", &asked[0])
        );
        let codes = [code(&ended.0), code(&ended.1)];
        assert!(
            codes.contains(&None) && codes.contains(&Some("run_ended")),
            "{thread}: {codes:?}"
        );
        completed(&thread, &place.result(&thread).await);
        assert_eq!(place.world.count(&thread, "effect refund_0_0"), 1);
    }

    // Replies of another tenant, and to an unknown question: the run waits.
    let asked = place.start("e", "refund").await;
    let id = place.invocation("e", "suspended").await;
    let sql = format!("SELECT index FROM sys_journal WHERE id = '{id}'");
    let records = place.restate.query(&sql).await.len();
    let unknown = Interrupt::new(InterruptId::new("other"), interrupt::TOOL_CALL);
    let unknown = place.approve("e", "r0", &unknown).await;
    assert_eq!(code(&unknown), Some("unknown_interrupt"));
    let none = place
        .client
        .reply("e", "none", &ReplyInput::default())
        .await;
    assert_eq!(code(&none.unwrap()), Some("missing_reply"));
    let input = ReplyInput::new(vec![Reply::approve(asked[0].id.clone())]).with_tenant("other");
    let hidden = place.client.reply("e", "r1", &input).await.unwrap();
    assert_eq!(code(&hidden), Some("run_not_found"));
    assert_eq!(place.restate.query(&sql).await.len(), records);
    // Replies that the waiting code cannot read.
    let secret = place.awakeable("e").await;
    let uri = format!(
        "{}/restate/awakeables/{secret}/resolve",
        place.restate.ingress()
    );
    let delivery = serde_json::json!({ "at": 0, "input": { "replies": 5 }, "result": secret });
    assert!((200..300).contains(&post(&uri, &delivery.to_string()).await));
    while place.awakeable("e").await == secret {
        sleep(Duration::from_millis(5)).await;
    }
    completed("e", &place.approve("e", "r2", &asked[0]).await);

    // Cancelled while it waits, in a process and suspended; the conversation continues.
    for is_suspended in [false, true] {
        let thread = format!("f{is_suspended}");
        let asked = place.start(&thread, "look;refund").await;
        if is_suspended {
            place.invocation(&thread, "suspended").await;
        }
        assert!(place.client.cancel(&thread).await.unwrap());
        let output = place.result(&thread).await;
        let reason = CancelReason::User;
        assert_eq!(output.outcome, Some(Outcome::Aborted { reason }));
        let late = place.approve(&thread, "r", &asked[0]).await;
        assert_eq!(code(&late), Some("run_ended"));
        assert_eq!(place.world.count(&thread, "effect refund_1_0"), 0);
        assert!(!place.client.cancel(&thread).await.unwrap());
        let input = RunInput::user("look");
        let next = place.client.run(&thread, "next", &input).await;
        completed(&thread, &next.unwrap());
    }

    // A run without an answer has no text.
    place.start("l", "refund").await;
    assert!(place.client.cancel("l").await.unwrap());
    assert_eq!(place.result("l").await.text, "");
    // Cancelled in a step, after a wait.
    let asked = place.start("h", "refund;stuck").await;
    let input = ReplyInput::new(vec![Reply::approve(asked[0].id.clone())]);
    retried(|| place.client.start_reply("h", "r", &input)).await;
    while place.world.count("h", "tool stuck_1_0") == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(place.client.cancel("h").await.unwrap());
    let reason = CancelReason::User;
    let aborted = Some(Outcome::Aborted { reason });
    assert_eq!(place.result("h").await.outcome, aborted);
    assert_eq!(place.approve("h", "r", &asked[0]).await.outcome, aborted);
    let next = place.client.run("h", "next", &RunInput::user("look")).await;
    completed("h", &next.unwrap());

    // Killed by an operator: a reply resumes the run in an invocation of its own.
    let asked = place.start("g", "refund+refund").await;
    let id = place.invocation("g", "suspended").await;
    place.restate.kill_invocation(&id).await;
    let first = place.approve("g", "r0", &asked[0]).await;
    assert_eq!(first.outcome, Some(Outcome::Interrupted));
    completed("g", &place.approve("g", "r1", &asked[1]).await);
    assert_eq!(place.world.count("g", "model 0"), 1);

    // Killed in a step after it has taken a reply: only another reply resumes it, and nothing is executed twice.
    let asked = place.start("k", "refund;slow").await;
    let kill = async {
        while place.world.count("k", "tool slow_1_0") == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        let id = place.invocation("k", "running").await;
        place.restate.kill_invocation(&id).await;
    };
    let (lost, ()) = tokio::join!(place.approve("k", "r0", &asked[0]), kill);
    assert_eq!(code(&lost), Some("replies_lost"), "{lost:?}");
    assert_eq!(place.client.state("k").await.unwrap().interrupts, asked);
    assert_eq!(place.world.count("k", "tool slow_1_0"), 1);
    completed("k", &place.approve("k", "r1", &asked[0]).await);
    assert_eq!(place.world.count("k", "tool refund_0_0"), 1);

    // The handlers behind `reply` are not reachable from outside.
    for handler in ["deliver", "resume"] {
        let uri = format!("{}/Clerk/e/{handler}", place.restate.ingress());
        let status = post(&uri, "{}").await;
        assert!((400..500).contains(&status), "{handler}: {status}");
    }
    drop(worker);
    awaited_events().await;
    "one invocation per run: suspended without a worker, killed, restarted, past its deadline, in parts, twice, late, \
     of others, cancelled, killed by an operator before and after a reply"
        .into()
}

/// A consumer can reply as soon as it has the interrupts, which are published once.
async fn awaited_events() {
    let mut place = Place::awaiting().await;
    let events = RunEvents::new();
    let agent = agent(&place.world, MemoryStore::new(), &Traced::default());
    let agents = RestateAgents::new("Clerk", agent).events(events.clone());
    let task = serve(&place, agents.waits(Waits::Await)).await;
    let mut consumer = events.attach("t");
    let input = RunInput::user("look;refund;refund");
    place.client.start("t", "run", &input).await.unwrap();
    let mut outcomes = Vec::new();
    while outcomes.len() < 3 {
        let Event::Finish(finish) = consumer.next().await.unwrap() else {
            continue;
        };
        outcomes.push(finish.outcome.clone());
        for (at, asked) in finish.interrupts().into_iter().enumerate() {
            // The parts before the wait are driven again, from the journal.
            if outcomes.len() == 2 {
                place.restate.restart().await;
            }
            let key = format!("r{}-{at}", outcomes.len());
            let input = ReplyInput::new(vec![Reply::approve(asked.id.clone())]);
            retried(|| place.client.start_reply("t", &key, &input)).await;
        }
    }
    let waits = Outcome::Interrupted;
    assert_eq!(outcomes, [waits.clone(), waits, Outcome::Completed]);
    completed("t", &place.result("t").await);
    assert_eq!(place.world.count("t", "model 0"), 1);
    task.abort();
}

/// The wait ends with the last of the run's interrupts.
pub(super) async fn expiry() -> String {
    let place = Place::awaiting().await;
    let options = Options {
        inactivity: Duration::from_millis(200),
        ..Options::default()
    };
    let worker = place.worker(options).await;
    let asked = place.start("t", "look;brief").await;
    let early = place.start("u", "brief").await;
    completed("u", &place.approve("u", "r", &early[0]).await);
    // It expires while no worker runs.
    place.invocation("t", "suspended").await;
    worker.hold(true);
    worker.kill();
    worker.ended().await;
    sleep(Duration::from_secs(1)).await;
    worker.hold(false);
    let output = place.result("t").await;
    let reason = CancelReason::Other("expired".into());
    assert_eq!(output.outcome, Some(Outcome::Aborted { reason }));
    let late = place.approve("t", "r", &asked[0]).await;
    assert_eq!(code(&late), Some("run_ended"));
    assert_eq!(place.world.count("t", "effect brief_1_0"), 0);
    // The request, and the round before the one that waited.
    assert_eq!(place.client.state("t").await.unwrap().turns, 2);
    // One that may still be answered keeps the other one.
    let asked = place.start("v", "brief+refund").await;
    sleep(Duration::from_millis(1_200)).await;
    let first = place.approve("v", "r0", &asked[0]).await;
    assert_eq!(code(&first), Some("expired"));
    let denied = Reply::deny(asked[0].id.clone(), "No.");
    let input = ReplyInput::new(vec![denied, Reply::approve(asked[1].id.clone())]);
    completed("v", &place.client.reply("v", "r1", &input).await.unwrap());
    "a wait ended with the last of its interrupts, without a worker; the conversation continues"
        .into()
}
