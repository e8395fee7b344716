//! The test: runs are started at a steady rate while workers die, and the histories are checked.

use super::{
    check::{Outcome, check},
    client::{Clients, Database, Rows, TURNS, Worker, watch_rows},
    dice::{Dice, setting},
    history,
    nemesis::{self, Faults},
    worker::Part,
    world::World,
};
use concentric_core::{
    ThreadId,
    store::{Tenant, ThreadStore},
};
use concentric_store::{Options, PostgresStore};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// The number of workers.
const WORKERS: usize = 4;

/// How long the runs may take to end after the load and the faults have.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Settings {
    pub seconds: u64,
    pub calm: u64,
    pub rate: u64,
    pub steps: usize,
    pub lease: Duration,
    pub sweep: Duration,
    pub nemesis: Duration,
    pub restart: Option<String>,
    /// The longest time in milliseconds after which a person replies.
    pub thinks: u64,
    pub first_token: Duration,
}

impl Settings {
    pub fn read() -> Self {
        let millis = |name, default| Duration::from_millis(setting(name, default));
        Self {
            seconds: setting("CONCENTRIC_CLUSTER_SECONDS", 10),
            calm: setting("CONCENTRIC_CLUSTER_CALM", 3),
            rate: setting("CONCENTRIC_CLUSTER_RATE", 200),
            steps: setting("CONCENTRIC_CLUSTER_STEPS", 4),
            lease: millis("CONCENTRIC_CLUSTER_LEASE", 2_000),
            sweep: millis("CONCENTRIC_CLUSTER_SWEEP", 1_000),
            nemesis: millis("CONCENTRIC_CLUSTER_NEMESIS", 1_000),
            restart: std::env::var("CONCENTRIC_POSTGRES_RESTART").ok(),
            thinks: setting("CONCENTRIC_CLUSTER_THINKS", 2_000),
            first_token: millis("CONCENTRIC_CLUSTER_FIRST_TOKEN", 100),
        }
    }
}

#[test]
fn workers_that_die_lose_nothing_and_repeat_nothing() {
    let Ok(url) = std::env::var("CONCENTRIC_POSTGRES") else {
        println!("skipped without CONCENTRIC_POSTGRES: `.ci/cluster` sets it");
        return;
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(run(url));
}

/// The transactions of the server so far.
async fn transactions(database: &mut Database) -> i64 {
    let query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    database.rows(query).await[0].get(0)
}

async fn run(url: String) {
    let (dice, settings) = (Dice::cast(), Settings::read());
    println!("{settings:?}");
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path());
    let schema = format!("cluster_{}", std::process::id());
    PostgresStore::migrate(&url, &schema).await.unwrap();
    let options = Options::new().schema(schema.as_str()).pool_size(2);
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let part = Part {
            dir: dir.path().to_owned(),
            url: url.clone(),
            schema: schema.clone(),
            worker: (n, 0),
            clock_off: 0,
        };
        workers.push(Worker::start(&world, part).await);
    }
    let (sender, rows) = watch::channel(Rows::default());
    let statements = Arc::new(AtomicU64::new(0));
    let watcher = watch_rows(url.clone(), schema.clone(), sender, Arc::clone(&statements));
    let watcher = tokio::spawn(watcher);
    let clients = Arc::new(Clients {
        workers,
        world: world.clone(),
        store,
        rows,
        requests: AtomicU64::new(0),
        settings: settings.clone(),
        replies: Arc::default(),
        done: std::sync::Mutex::default(),
    });

    let mut database = Database::new(&url);
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let calm = calm(&clients, &statements, &mut database);
    let nemesis = {
        let (clients, dice, stop) = (Arc::clone(&clients), dice.fork(1), Arc::clone(&stop));
        let calm = Duration::from_secs(settings.calm);
        tokio::spawn(async move {
            sleep(calm).await;
            match clients.settings.nemesis.is_zero() {
                true => Faults::default(),
                false => nemesis::run(clients, dice, stop).await,
            }
        })
    };
    let load = load(&clients, &dice, began);
    let (mut conversations, per_step) = tokio::join!(load, calm);
    stop.store(true, Ordering::Relaxed);
    let faults = nemesis.await.unwrap();
    let ended = timeout(ENDS_WITHIN, async {
        while let Some(ended) = conversations.join_next().await {
            ended.unwrap();
        }
    });
    let took = began.elapsed();
    if ended.await.is_err() {
        let query = format!(
            "SELECT r.client_id || ' ' || r.status || ' ' || r.fence || ' ' || coalesce(l.takeovers, -1)
             FROM {schema}.runs r LEFT JOIN {schema}.leases l ON l.run = r.id WHERE r.status <> 'ended'"
        );
        let rows = database.rows(&query).await;
        let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        panic!(
            "not all runs end: {rows:?}; the files are in {:?}",
            dir.keep()
        );
    }
    if watcher.is_finished() {
        watcher.await.unwrap();
    } else {
        watcher.abort();
    }
    for worker in &clients.workers {
        worker.end();
    }
    let mut threads = HashMap::new();
    let done = clients.done.lock().unwrap().clone();
    for (thread, scripts) in done {
        let loaded = clients
            .store
            .load(Tenant::default(), ThreadId::new(thread.as_str()));
        let history = loaded.await.unwrap().map(|thread| thread.history);
        threads.insert(thread, (scripts, history.unwrap_or_default()));
    }
    let query = format!(
        "SELECT r.client_id, r.run, r.status, l.held FROM {schema}.runs r
         LEFT JOIN {schema}.leases l ON l.run = r.id"
    );
    let rows = database.rows(&query).await;
    let rows = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect();
    let outcome = Outcome {
        entries: world.entries(),
        done: world.done(),
        notes: history::read(&world),
        threads,
        rows,
        replies: clients.replies.lock().unwrap().clone(),
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&outcome)));
    let figures = match checked {
        Ok(figures) => figures,
        Err(panic) => {
            println!("the files are in {:?}", dir.keep());
            std::panic::resume_unwind(panic);
        }
    };
    println!("{took:?}, {faults:?}");
    println!("{figures}");
    // Others take longer, if their server or the process that resumes them fails as well.
    let limit = settings.lease + settings.sweep * 3 / 2 + Duration::from_secs(2);
    assert!(figures.percentile(50) <= limit, "{limit:?}");
    if let Some(per_step) = per_step {
        println!("{per_step:.2} transactions per step before the faults");
    }
}

/// Starts conversations at the rate, each of which starts its runs one after the other.
async fn load(clients: &Arc<Clients>, dice: &Dice, began: Instant) -> JoinSet<()> {
    let settings = &clients.settings;
    let every = Duration::from_secs(60) * u32::try_from(TURNS).unwrap();
    let every = every / u32::try_from(settings.rate).unwrap();
    let mut conversations = JoinSet::new();
    for n in 0_u32.. {
        let at = began + every * n;
        if at >= began + Duration::from_secs(settings.seconds) {
            break;
        }
        sleep_until(at).await;
        let (clients, n) = (Arc::clone(clients), n as usize);
        let dice = dice.fork(1_000 + n as u64);
        conversations.spawn(async move { clients.converse(n, dice).await });
    }
    conversations
}

/// Measures the transactions of the workers for each step before the faults begin.
async fn calm(
    clients: &Arc<Clients>,
    statements: &AtomicU64,
    database: &mut Database,
) -> Option<f64> {
    let calm = clients.settings.calm;
    if calm < 2 {
        return None;
    }
    // The processes have started, and what the server counts is a second late.
    sleep(Duration::from_secs(1)).await;
    let steps = || {
        let is_step = |note: &history::Note| note.what == history::What::Step;
        history::read(&clients.world)
            .iter()
            .filter(|note| is_step(note))
            .count()
    };
    let own = || statements.load(Ordering::Relaxed);
    let before = (transactions(database).await, steps(), own());
    sleep(Duration::from_secs(calm - 1)).await;
    let after = (transactions(database).await, steps(), own());
    let own = (after.2 - before.2) as f64 + 2.0;
    let all = (after.0 - before.0) as f64;
    (after.1 > before.1).then(|| (all - own) / (after.1 - before.1) as f64)
}
