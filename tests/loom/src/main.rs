//! Model checks of shared state with loom. They explore every interleaving with at most
//! [`PREEMPTIONS`] preemptions of a thread that could continue, and every stale value that an
//! atomic may return.
//!
//! The models use the sources of the crates. `build.rs` replaces their imports from `std` and tokio
//! with [`stand_in`]. It also creates copies with one planted bug each, which the named model must
//! find. Without arguments, all models and then all planted bugs are explored; with the name of a
//! planted bug, only that one.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a model fails by a panic"
)]
#![allow(
    clippy::duplicate_mod,
    clippy::type_complexity,
    reason = "the models of a source also run against its planted bugs"
)]

mod stand_in;

use ::std::{
    env,
    error::Error,
    panic,
    pin::{Pin, pin},
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll, Wake, Waker},
    time::Instant,
};
use concentric_core::Event;
use loom::sync::Notify;
use outbox::source::Outbox;

/// The largest number of preemptions in a schedule.
const PREEMPTIONS: usize = 4;

macro_rules! source {
    ($file:literal) => {
        #[allow(
            dead_code,
            unnameable_types,
            unreachable_pub,
            reason = "they are used and public in their own crates"
        )]
        pub(crate) mod source {
            include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
        }
    };
}

#[path = "models"]
mod outbox {
    source!("outbox");
    // For the questions, which import it.
    pub(crate) use source::EmitError;
    pub(crate) mod imports {}
    #[path = "outbox.rs"]
    pub(crate) mod models;
}

#[path = "models"]
mod live {
    source!("live");
    pub(crate) mod imports {}
    #[path = "live.rs"]
    pub(crate) mod models;
}

#[path = "models"]
mod slots {
    source!("slots");
    use imports::{Fault, Keep, Slot, SlotError};
    pub(crate) mod imports {
        pub(crate) use concentric_core::state::{Keep, Slot};
        use std::{error::Error, sync::Arc};

        /// `concentric_core::state::SlotError`, which has no public constructor.
        #[derive(Debug)]
        #[allow(dead_code, reason = "it is shown")]
        pub(crate) struct SlotError(&'static str, Fault);

        #[derive(Debug)]
        #[allow(dead_code, reason = "it is shown")]
        pub(crate) enum Fault {
            Name,
            Read(u32, Arc<dyn Error + Send + Sync>),
            Write(Arc<dyn Error + Send + Sync>),
        }

        impl SlotError {
            pub(crate) const fn new(slot: &'static str, fault: Fault) -> Self {
                Self(slot, fault)
            }
        }
    }
    #[path = "slots.rs"]
    pub(crate) mod models;
}

#[path = "models"]
mod cancel {
    source!("cancel");
    pub(crate) mod imports {}
    #[path = "cancel.rs"]
    pub(crate) mod models;
}

#[path = "models"]
mod budget {
    source!("budget");
    use imports::{Amounts, Limits, OverBudget, RunBudgetLayer};
    #[allow(dead_code, unnameable_types, unreachable_pub, reason = "as above")]
    pub(crate) mod imports {
        pub(crate) use concentric_core::store::{Amounts, Limits, OverBudget};

        pub(crate) struct RunBudgetLayer;
    }
    #[path = "budget.rs"]
    pub(crate) mod models;
}

#[allow(
    unreachable_code,
    reason = "the models have no connection with a store"
)]
#[path = "models"]
mod in_flight {
    source!("in_flight");
    pub(crate) mod imports {}
    #[path = "in_flight.rs"]
    pub(crate) mod models;
}

#[allow(dead_code, reason = "as above")]
mod body {
    include!(concat!(env!("OUT_DIR"), "/body.rs"));
}

/// The connection of a limit with other processes, which the models do not have.
mod shared {
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Shared {}

    #[derive(Debug)]
    pub(crate) enum Link {}

    impl Link {
        pub(crate) const fn new(_max: usize, shared: Shared) -> Self {
            match shared {}
        }

        pub(crate) const fn max(&self) -> usize {
            match *self {}
        }

        pub(crate) const fn gives_up(&self) -> bool {
            match *self {}
        }

        pub(crate) const fn refuses(&self) -> bool {
            match *self {}
        }

        pub(crate) const fn start<T>(&self, _limit: &T) {
            match *self {}
        }
    }
}

#[allow(unreachable_pub, reason = "as above")]
mod wait {
    include!(concat!(env!("OUT_DIR"), "/wait.rs"));
}

mod planted {
    include!(concat!(env!("OUT_DIR"), "/planted.rs"));
}

/// The part of `concentric_core::Context` that live interrupts need.
struct Context {
    outbox: Outbox,
    late: stand_in::Token,
}

impl Context {
    async fn send(&self, event: Event) -> Result<(), outbox::EmitError> {
        self.outbox.send(event).await
    }

    async fn sleep(&self) {
        self.late.cancelled().await;
    }
}

mod run_key {
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub(crate) struct Tenant;
}

/// All models, each with the name of its subject.
const MODELS: &[(&str, &str, fn())] = &[
    (
        "outbox",
        "pushes_wake_the_driver",
        outbox::models::pushes_wake_the_driver,
    ),
    (
        "outbox",
        "senders_wait_for_room",
        outbox::models::senders_wait_for_room,
    ),
    (
        "outbox",
        "a_dropped_sender_passes_on_its_room",
        outbox::models::a_dropped_sender_passes_on_its_room,
    ),
    (
        "outbox",
        "close_ends_senders",
        outbox::models::close_ends_senders,
    ),
    (
        "outbox",
        "a_call_of_the_driver_is_kept",
        outbox::models::a_call_of_the_driver_is_kept,
    ),
    (
        "outbox",
        "the_flag_reports_pending_events",
        outbox::models::the_flag_reports_pending_events,
    ),
    (
        "live",
        "an_accepted_reply_is_delivered",
        live::models::an_accepted_reply_is_delivered,
    ),
    (
        "live",
        "one_of_two_replies_is_accepted",
        live::models::one_of_two_replies_is_accepted,
    ),
    (
        "live",
        "a_dropped_interrupt_is_withdrawn",
        live::models::a_dropped_interrupt_is_withdrawn,
    ),
    (
        "slots",
        "no_update_is_lost",
        slots::models::no_update_is_lost,
    ),
    (
        "slots",
        "a_first_read_keeps_updates",
        slots::models::a_first_read_keeps_updates,
    ),
    (
        "slots",
        "a_run_is_restored_once",
        slots::models::a_run_is_restored_once,
    ),
    (
        "slots",
        "a_commit_keeps_other_changes",
        slots::models::a_commit_keeps_other_changes,
    ),
    (
        "cancel",
        "a_cancelled_run_has_its_reason",
        cancel::models::a_cancelled_run_has_its_reason,
    ),
    (
        "budget",
        "reservations_stay_within_the_budget",
        budget::models::reservations_stay_within_the_budget,
    ),
    (
        "budget",
        "nothing_stays_reserved",
        budget::models::nothing_stays_reserved,
    ),
    (
        "budget",
        "a_part_is_returned",
        budget::models::a_part_is_returned,
    ),
    (
        "budget",
        "an_extension_fits",
        budget::models::an_extension_fits,
    ),
    (
        "budget",
        "a_run_keeps_its_spending",
        budget::models::a_run_keeps_its_spending,
    ),
    (
        "in_flight",
        "one_response_at_a_time",
        in_flight::models::one_response_at_a_time,
    ),
    (
        "in_flight",
        "a_dropped_waiter_passes_on_its_turn",
        in_flight::models::a_dropped_waiter_passes_on_its_turn,
    ),
    (
        "in_flight",
        "the_queue_is_bounded",
        in_flight::models::the_queue_is_bounded,
    ),
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // loom itself writes to stderr at each wait.
    panic::set_hook(Box::new(|panic| println!("    {panic}")));
    if let Some(wanted) = env::args().nth(1) {
        let planted = planted::ALL.iter().find(|(name, ..)| *name == wanted);
        let (.., model) = planted.ok_or("unknown planted bug")?;
        explore(*model);
        return Ok(ExitCode::SUCCESS);
    }
    println!("at most {PREEMPTIONS} preemptions, and one spurious wake-up per wait");
    for (of, name, model) in MODELS {
        let began = Instant::now();
        let schedules = explore(*model);
        let took = began.elapsed().as_secs_f32();
        println!("{of:10} {name:42} {schedules:7} schedules {took:6.1} s");
    }
    let mut missed = 0;
    for (name, of, model, _) in planted::ALL {
        // In a child process, because a failed model may abort.
        let output = Command::new(env::current_exe()?).arg(name).output()?;
        let shown = String::from_utf8_lossy(&output.stdout);
        // The location of the panic, then its message.
        let why = shown.lines().nth(1).unwrap_or_default().trim();
        let why: String = why.chars().take(60).collect();
        match output.status.success() {
            true => println!("{of:10} planted {name} NOT FOUND by {model}"),
            false => println!("{of:10} planted {name:30} found by {model}: {why}"),
        }
        missed += usize::from(output.status.success());
    }
    println!("planted bugs: {}, not found: {missed}", planted::ALL.len());
    Ok(match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs `model` under every schedule, and returns the number of schedules.
fn explore(model: fn()) -> usize {
    let schedules = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    schedules.load(Ordering::Relaxed)
}

/// Wakes a thread of a model. Cloning it is not a step of the model.
#[derive(Default)]
struct Parked(Notify);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Polls `future` after each wakeup, and once without one.
fn block_on<F>(future: F) -> F::Output
where
    F: Future,
{
    let mut future = pin!(future);
    let parked = Arc::new(Parked::default());
    let waker = Waker::from(Arc::clone(&parked));
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => parked.0.wait(),
        }
    }
}

/// Polls `future` once, for a task without a waker.
fn poll_once<F>(future: Pin<&mut F>) -> Poll<F::Output>
where
    F: Future,
{
    future.poll(&mut TaskContext::from_waker(Waker::noop()))
}
