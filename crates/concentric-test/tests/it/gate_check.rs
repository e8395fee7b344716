//! Gates that break one rule each, and the check that finds it.

use concentric_core::{
    BoxError, Interrupt, InterruptId, Str, ToolCall, ToolSpec,
    agent::{FinishDecision, StepDecision, StepDraft, StepGate},
    call::Delivery,
    gate::{Decided, Gate, Verdict, gate_fn},
    hooks::Interest,
};
use concentric_test::{check_gate, check_step_gate};
use serde_json::{Value, json};
use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

// ---- gates of tool calls ----

async fn check(gate: impl Gate) {
    let refund = ToolSpec::new("refund", "Pays a refund.", json!({"type": "object"}));
    check_gate(gate, refund, json!({"amount": 3, "to": ["Ann"]})).await;
}

fn amount(call: &ToolCall) -> Option<u64> {
    let arguments: Value = serde_json::from_str(call.arguments().as_str()).ok()?;
    arguments["amount"].as_u64()
}

/// A gate that decides later.
struct Later<F>(F);

impl<F> Gate for Later<F>
where
    F: Fn(&ToolCall) -> Decided + Send + Sync + 'static,
{
    fn policy(&self) -> Str {
        Str::from_static("later")
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        self.0(call)
    }
}

fn no() -> Result<Verdict, BoxError> {
    Ok(Verdict::deny("no"))
}

#[tokio::test(start_paused = true)]
async fn good_gates_pass() {
    check(gate_fn("all", |_| Verdict::ask())).await;
    check(gate_fn("amount", |call| match amount(call) {
        Some(0..2) => Verdict::Allow,
        _ => Verdict::halt("no"),
    }))
    .await;
    check(Later(|_: &ToolCall| {
        Decided::later(async {
            tokio::task::yield_now().await;
            no()
        })
    }))
    .await;
    // A gate that fails denies the call.
    check(Later(|_: &ToolCall| {
        Decided::later(async { Err("broken".into()) })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate has no policy")]
async fn a_gate_without_a_policy() {
    check(gate_fn("", |_| Verdict::ask())).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the policy of the gate changes")]
async fn a_gate_with_another_policy_each_time() {
    struct Counts(AtomicUsize);

    impl Gate for Counts {
        fn policy(&self) -> Str {
            self.0.fetch_add(1, Ordering::Relaxed).to_string().into()
        }

        fn decide(&self, _: &ToolCall) -> Decided {
            Verdict::ask().into()
        }
    }

    check(Counts(AtomicUsize::new(0))).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate does not hold the call back")]
async fn a_gate_of_other_calls() {
    check(gate_fn("other", |call| match call.name().as_str() {
        "pay" => Verdict::ask(),
        _ => Verdict::Pass,
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate is weaker the second time")]
async fn a_gate_that_asks_once() {
    let asked = AtomicBool::new(false);
    check(gate_fn("once", move |_| {
        match asked.swap(true, Ordering::Relaxed) {
            false => Verdict::ask(),
            true => Verdict::Allow,
        }
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate is weaker about the same arguments as other JSON text")]
async fn a_gate_that_searches_the_text_of_the_arguments() {
    check(gate_fn("text", |call| {
        match call.arguments().as_str().contains("Ann") {
            true => Verdict::deny("no"),
            false => Verdict::Pass,
        }
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate is weaker about a resumed call")]
async fn a_gate_that_trusts_a_resumed_call() {
    check(gate_fn("first", |call| match call.delivery() {
        Delivery::First => Verdict::deny("no"),
        Delivery::Resumed => Verdict::Allow,
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate panicked")]
async fn a_gate_that_expects_arguments_of_a_form() {
    check(gate_fn("amount", |call| match amount(call).unwrap() {
        0..2 => Verdict::Allow,
        _ => Verdict::deny("no"),
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a decision: the check timed out")]
async fn a_gate_that_hangs() {
    check(Later(|_: &ToolCall| Decided::later(pending()))).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled without a wakeup: the check timed out")]
async fn a_gate_that_wakes_its_first_waker() {
    check(Later(|_: &ToolCall| {
        let (done, mut waker) = (Arc::new(AtomicBool::new(false)), None::<Waker>);
        Decided::later(poll_fn(move |cx| {
            if done.load(Ordering::SeqCst) {
                return Poll::Ready(no());
            }
            if waker.is_none() {
                let first = waker.insert(cx.waker().clone()).clone();
                let done = Arc::clone(&done);
                tokio::spawn(async move {
                    done.store(true, Ordering::SeqCst);
                    first.wake();
                });
            }
            Poll::Pending
        }))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate is weaker after a decision that was dropped after 1 polls")]
async fn a_gate_that_keeps_state_of_a_dropped_decision() {
    let busy = Arc::new(AtomicBool::new(false));
    check(Later(move |call: &ToolCall| {
        let busy = Arc::clone(&busy);
        let is_other = call.id().as_str() == "c2";
        Decided::later(async move {
            if !is_other && busy.swap(true, Ordering::SeqCst) {
                return Ok(Verdict::Pass);
            }
            tokio::task::yield_now().await;
            busy.store(false, Ordering::SeqCst);
            no()
        })
    }))
    .await;
}

// ---- gates between steps ----

/// A gate that decides before each step.
struct Before<F> {
    name: &'static str,
    interest: Interest,
    step: F,
}

fn before<F>(step: F) -> Before<F> {
    Before {
        name: "before",
        interest: Interest::BEFORE_STEP,
        step,
    }
}

impl<F> StepGate for Before<F>
where
    F: Fn(&StepDraft) -> Result<StepDecision, BoxError> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.name
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        tokio::task::yield_now().await;
        (self.step)(draft)
    }
}

/// Raises an interrupt before the second step, and decides by the reply.
fn asks(
    decide: fn(&concentric_core::Reply) -> StepDecision,
) -> Before<impl Fn(&StepDraft) -> Result<StepDecision, BoxError> + Send + Sync> {
    before(move |draft: &StepDraft| {
        let id = draft.interrupt_id("before");
        Ok(match (draft.step, draft.reply(&id)) {
            (1, None) => StepDecision::ask(Interrupt::new(id, "more")),
            (1, Some(reply)) => decide(reply),
            _ => StepDecision::Continue,
        })
    })
}

#[tokio::test(start_paused = true)]
async fn good_step_gates_pass() {
    check_step_gate(|| before(|_: &StepDraft| Ok(StepDecision::Continue))).await;
    check_step_gate(|| before(|_: &StepDraft| Ok(StepDecision::halt("no")))).await;
    check_step_gate(|| asks(|_| StepDecision::Continue)).await;
    check_step_gate(|| {
        asks(|reply| match reply.decision() {
            Ok(concentric_core::Decision::Approved { .. }) => StepDecision::Continue,
            _ => StepDecision::halt("not approved"),
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate has no name")]
async fn a_step_gate_without_a_name() {
    check_step_gate(|| Before {
        name: "",
        ..before(|_: &StepDraft| Ok(StepDecision::Continue))
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate decides about a moment outside of its interest")]
async fn a_step_gate_without_interest() {
    check_step_gate(|| Before {
        interest: Interest::BEFORE_FINISH,
        ..before(|_: &StepDraft| Ok(StepDecision::halt("no")))
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate failed the run")]
async fn a_step_gate_that_fails() {
    check_step_gate(|| before(|_: &StepDraft| Err("broken".into()))).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate decides differently in another run")]
async fn a_step_gate_that_counts_the_steps_of_all_runs() {
    check_step_gate(|| {
        let steps = AtomicUsize::new(0);
        before(move |_: &StepDraft| {
            Ok(match steps.fetch_add(1, Ordering::SeqCst) {
                ..4 => StepDecision::Continue,
                _ => StepDecision::halt("too many"),
            })
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate interrupts the run for ever")]
async fn a_step_gate_that_ignores_replies() {
    check_step_gate(|| {
        before(|draft: &StepDraft| {
            let id = InterruptId::new(draft.context.new_id("ask_"));
            Ok(StepDecision::ask(Interrupt::new(id, "more")))
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate panicked about a reply")]
async fn a_step_gate_that_expects_replies_of_a_form() {
    check_step_gate(|| {
        asks(|reply| {
            let approved = reply.payload.as_ref().unwrap()["approved"].as_bool();
            match approved.unwrap() {
                true => StepDecision::Continue,
                false => StepDecision::halt("not approved"),
            }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a run: the check timed out")]
async fn a_step_gate_that_hangs() {
    struct Hangs;

    impl StepGate for Hangs {
        fn name(&self) -> &str {
            "hangs"
        }

        async fn before_finish(&self, _: &mut StepDraft) -> Result<FinishDecision, BoxError> {
            pending().await
        }
    }

    check_step_gate(|| Hangs).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the gate decides differently after dropped runs")]
async fn a_step_gate_that_keeps_state_of_a_dropped_run() {
    struct Busy(AtomicBool);

    impl StepGate for Busy {
        fn name(&self) -> &str {
            "busy"
        }

        fn interest(&self) -> Interest {
            Interest::BEFORE_STEP
        }

        async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
            if self.0.swap(true, Ordering::SeqCst) {
                return Ok(StepDecision::halt("busy"));
            }
            tokio::task::yield_now().await;
            self.0.store(false, Ordering::SeqCst);
            Ok(StepDecision::Continue)
        }
    }

    check_step_gate(|| Busy(AtomicBool::new(false))).await;
}
