//! What goes wrong.

use super::{client::Clients, dice::Dice, load::Settings, proxy::Link};
use std::{
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::sleep};

/// The number of faults of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub kills: usize,
    pub stops: usize,
    pub cuts: usize,
    pub clocks: usize,
    pub restarts: usize,
}

/// The number of workers that may be at fault at the same time.
const AT_ONCE: usize = 2;

/// Causes faults until `stop`, and mends them all.
pub async fn run(clients: Arc<Clients>, mut dice: Dice, stop: Arc<AtomicBool>) -> Faults {
    let settings = clients.settings.clone();
    let mut faults = Faults::default();
    let faulty: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut tasks = JoinSet::new();
    while !stop.load(Ordering::Relaxed) {
        let every = settings.nemesis.as_millis() as u64;
        sleep(Duration::from_millis(every / 2 + dice.below(every))).await;
        if let Some(restart) = settings.restart.clone()
            && dice.below(12) == 0
        {
            faults.restarts += 1;
            let restarted = move || Command::new("sh").args(["-c", &restart]).status();
            let status = tokio::task::spawn_blocking(restarted).await.unwrap();
            assert!(status.unwrap().success());
            continue;
        }
        let healthy: Vec<_> = {
            let faulty = faulty.lock().unwrap();
            let all = 0..clients.workers.len();
            all.filter(|n| !faulty.contains(n)).collect()
        };
        if healthy.len() + AT_ONCE <= clients.workers.len() {
            continue;
        }
        let n = healthy[usize::try_from(dice.below(healthy.len() as u64)).unwrap()];
        let fault = Fault::choose(&mut dice, &settings);
        match fault {
            Fault::Kill(_) => faults.kills += 1,
            Fault::Stop(_) => faults.stops += 1,
            Fault::Cut(..) => faults.cuts += 1,
            Fault::Clock(_) => faults.clocks += 1,
        }
        faulty.lock().unwrap().push(n);
        let (clients, faulty) = (Arc::clone(&clients), Arc::clone(&faulty));
        tasks.spawn(async move {
            fault.cause(&clients, n).await;
            faulty.lock().unwrap().retain(|it| *it != n);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    faults
}

/// A fault of one worker, and how long it lasts.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The process is killed; another one is started.
    Kill(Duration),
    /// The process is stopped, and continues.
    Stop(Duration),
    /// The process has no connection to the server.
    Cut(Link, Duration),
    /// The clock is wrong by so many seconds, until it is set again.
    Clock(i64),
}

impl Fault {
    fn choose(dice: &mut Dice, settings: &Settings) -> Self {
        let leases = |from: f64, to: f64, dice: &mut Dice| {
            let share = dice.below(1_000) as f64 / 1_000.0;
            settings.lease.mul_f64(from + (to - from) * share)
        };
        match dice.below(20) {
            0..8 => Self::Kill(leases(0.0, 1.0, dice)),
            8..13 => Self::Stop(leases(1.2, 2.5, dice)),
            13..15 => Self::Cut(Link::Closed, leases(0.2, 2.0, dice)),
            15..17 => Self::Cut(Link::Silent, leases(0.2, 2.0, dice)),
            _ => Self::Clock(600 - i64::try_from(dice.below(1_200)).unwrap()),
        }
    }

    async fn cause(self, clients: &Clients, n: usize) {
        let worker = &clients.workers[n];
        match self {
            Self::Kill(time) => {
                worker.kill();
                sleep(time).await;
                worker.restart(&clients.world);
            }
            Self::Stop(time) => {
                worker.stop();
                sleep(time).await;
                worker.resume();
            }
            Self::Cut(link, time) => {
                worker.proxy.set(link);
                sleep(time).await;
                worker.proxy.set(Link::Up);
            }
            Self::Clock(off) => worker.set_clock(off),
        }
    }
}
