//! The processes of a world, and the loop that lets its events happen.

use super::{
    agent::{Settings, Stack},
    history::{End, What},
    outside::{Effects, Provider, Providers},
    store::{Connection, Database, Wire, end_of},
    time::{Act, ProcessClock, ProcessId, Time, environment, lock},
};
use crate::dice::Dice;
use concentric_core::{
    ChatRequest, Context, Environment, Error, Event, Outcome, Reply, Resume, ResumePoint, RunId,
    ThreadId, Transcript, store::Tenant,
};
use concentric_layers::suspend::Sweeper;
use futures_util::{
    StreamExt,
    future::{Either, select},
};
use std::{
    collections::{BTreeMap, VecDeque},
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};
use tower::ServiceExt;

// ---- runtimes ----

/// A runtime of one thread without timers, which is run until none of its tasks can continue.
pub(crate) struct Tasks {
    runtime: Runtime,
    idle: Arc<Idle>,
}

#[derive(Default)]
struct Idle {
    is_idle: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Tasks {
    pub(crate) fn new() -> std::io::Result<Self> {
        let idle = Arc::new(Idle::default());
        let parked = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || {
                parked.is_idle.store(true, Relaxed);
                let waker = lock(&parked.waker).take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            })
            .build()?;
        Ok(Self { runtime, idle })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    pub(crate) fn run(&self) {
        let idle = &self.idle;
        idle.is_idle.store(false, Relaxed);
        self.runtime.block_on(poll_fn(|cx| {
            if idle.is_idle.load(Relaxed) {
                return Poll::Ready(());
            }
            *lock(&idle.waker) = Some(cx.waker().clone());
            Poll::Pending
        }));
    }
}

// ---- requests ----

/// A request of a client to a process.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) thread: String,
    /// The id that the client gave its run.
    pub(super) client: String,
    pub(super) tag: String,
    pub(super) what: Asks,
    /// The milliseconds after which the client disconnects.
    pub(super) cut: Option<u64>,
}

pub(super) enum Asks {
    Start { text: String },
    Reply { replies: Vec<Reply> },
}

/// What a client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Finished(End),
    Interrupted,
    Failed,
}

type Pending = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>>;

/// The owner of a conversation: one of three.
pub(super) fn tenant_of(thread: &str) -> Tenant {
    let last = thread.bytes().last().unwrap_or_default();
    Tenant(format!("tenant{}", last % 3).into())
}

// ---- processes ----

/// A place for processes, one after the other.
struct Place {
    process: Option<Process>,
    count: u32,
    fast: i64,
    off: Arc<AtomicI64>,
    is_paused: bool,
    // What happens to a paused process once it continues.
    deferred: VecDeque<Act>,
    wire: Wire,
}

struct Process {
    tasks: Tasks,
    stack: Arc<Stack>,
    environment: Environment,
    wire: Arc<Mutex<Wire>>,
    pending: Pending,
    // Dropped to stop the sweeper.
    stop: Option<oneshot::Sender<()>>,
}

/// The processes of a world.
pub(crate) struct Hosts {
    pub(super) time: Time,
    pub(super) database: Database,
    pub(super) effects: Effects,
    pub(super) providers: Providers,
    pub(super) settings: Settings,
    pub(super) clients: Tasks,
    places: Vec<Place>,
    dice: Dice,
}

/// The process of the clients, which never fails.
pub(super) const CLIENTS: ProcessId = (usize::MAX, 0);

impl Hosts {
    pub(super) fn new(
        database: Database,
        settings: Settings,
        workers: usize,
        losses: u64,
        clients: Tasks,
        mut dice: Dice,
    ) -> Self {
        let time = database.time.clone();
        let places = (0..workers).map(|_| Place {
            process: None,
            count: 0,
            // By up to a tenth.
            fast: 100 - i64::try_from(dice.below(201)).unwrap_or(100),
            off: Arc::default(),
            is_paused: false,
            deferred: VecDeque::new(),
            wire: Wire {
                loses: losses,
                ..Wire::default()
            },
        });
        let places = places.collect();
        Self {
            effects: Effects::new(time.clone()),
            providers: Providers::default(),
            time,
            database,
            settings,
            clients,
            places,
            dice,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn fault(&self, place: usize, what: &str) {
        let count = self.places.get(place).map_or(0, |place| place.count);
        let what = What::Fault(what.to_owned());
        self.time.note(Some((place, count)), what);
    }

    // ---- the life of a process ----

    pub(super) fn start(&mut self, at: usize) {
        let seed = self.dice.next();
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        let Ok(tasks) = Tasks::new() else { return };
        if place.process.is_some() {
            return;
        }
        place.count += 1;
        let id = (at, place.count);
        let wire = Arc::new(Mutex::new(Wire {
            is_dead: false,
            ..place.wire
        }));
        let connection = Connection {
            database: self.database.clone(),
            process: id,
            wire: Arc::clone(&wire),
        };
        let clock = ProcessClock::new(
            self.time.clone(),
            Some(id),
            place.fast,
            Arc::clone(&place.off),
        );
        let environment = environment(clock, id, Dice::new(seed));
        let stack = Stack::new(
            &connection,
            &environment,
            &self.settings,
            &self.effects,
            &self.providers,
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let sweeper = Sweeper::new(&stack.suspend, stack.agent.clone())
            .environment(environment.clone())
            .every(Duration::from_millis(self.settings.sweep));
        tasks.spawn(sweeper.run(async { drop(stopped.await) }));
        place.process = Some(Process {
            tasks,
            stack: Arc::new(stack),
            environment,
            wire,
            pending: Arc::default(),
            stop: Some(stop),
        });
        self.fault(at, "start");
        self.run(at);
    }

    pub(super) fn crash(&mut self, at: usize) {
        self.fault(at, "crash");
        let time = self.time.clone();
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        place.is_paused = false;
        place.deferred.clear();
        let Some(process) = place.process.take() else {
            return;
        };
        lock(&process.wire).is_dead = true;
        drop(process.tasks);
        // Those of requests that waited for the process, too.
        time.after(1, Some(CLIENTS), Act::Do(Box::new(|| {})));
        // Its connections are reset.
        for (_, client) in std::mem::take(&mut *lock(&process.pending)) {
            reply(&time, 1, client, Answer::Failed);
        }
    }

    /// Ends a process, and starts another one.
    pub(super) fn poison(&mut self, (at, count): ProcessId) {
        if self
            .places
            .get(at)
            .is_some_and(|it| it.count == count && it.process.is_some())
        {
            self.crash(at);
            let act = move |hosts: &mut Self| hosts.start(at);
            self.time.after(300, None, Act::World(Box::new(act)));
        }
    }

    /// Stops the sweeper of a process, which is ended later.
    pub(super) fn stop(&mut self, at: usize) {
        self.fault(at, "stop");
        if let Some(process) = self.process(at) {
            drop(process.stop.take());
        }
        self.run(at);
    }

    pub(super) fn pause(&mut self, at: usize) {
        self.fault(at, "pause");
        if let Some(place) = self.places.get_mut(at) {
            place.is_paused = place.process.is_some();
        }
    }

    pub(super) fn unpause(&mut self, at: usize) {
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        if !std::mem::take(&mut place.is_paused) {
            return;
        }
        let deferred = std::mem::take(&mut place.deferred);
        self.fault(at, "continue");
        // All that has happened meanwhile happens at once.
        for act in deferred {
            match act {
                Act::Wake(nap) => nap.wake(),
                Act::Do(act) => act(),
                Act::World(act) => act(self),
            }
        }
        self.run(at);
    }

    pub(super) fn cut(&mut self, at: usize, to: bool, back: bool) {
        self.fault(at, &format!("cut {to} {back}"));
        if let Some(place) = self.places.get_mut(at) {
            (place.wire.is_cut_to, place.wire.is_cut_back) = (to, back);
            if let Some(process) = &place.process {
                let mut wire = lock(&process.wire);
                (wire.is_cut_to, wire.is_cut_back) = (to, back);
            }
        }
    }

    pub(super) fn lose(&mut self, one_in: u64) {
        for place in &mut self.places {
            place.wire.loses = one_in;
            if let Some(process) = &place.process {
                lock(&process.wire).loses = one_in;
            }
        }
    }

    pub(super) fn set_clock(&mut self, at: usize, off: i64) {
        self.fault(at, &format!("clock {off}"));
        if let Some(place) = self.places.get(at) {
            place.off.store(off, Relaxed);
        }
    }

    pub(super) fn set_slow(&mut self, millis: u64) {
        self.time.note(None, What::Fault(format!("slow {millis}")));
        *lock(&self.database.slow) = millis;
    }

    pub(super) fn set_health(&mut self, provider: Provider, health: super::outside::Health) {
        let fault = format!("{provider:?} {health:?}");
        self.time.note(None, What::Fault(fault));
        self.providers.set(provider, health);
    }

    /// Ends all faults of a place.
    pub(super) fn heal(&mut self, at: usize) {
        self.unpause(at);
        self.cut(at, false, false);
        self.set_clock(at, 0);
        // A process that stops does not sweep.
        if self
            .process(at)
            .is_some_and(|process| process.stop.is_none())
        {
            self.crash(at);
        }
        self.start(at);
    }

    fn process(&mut self, at: usize) -> Option<&mut Process> {
        self.places.get_mut(at)?.process.as_mut()
    }

    fn run(&self, at: usize) {
        if let Some(place) = self.places.get(at)
            && let Some(process) = &place.process
            && !place.is_paused
        {
            process.tasks.run();
        }
    }

    // ---- events ----

    /// Handles an event.
    pub(super) fn happen(&mut self, process: Option<ProcessId>, act: Act) {
        let Some((at, count)) = process else {
            match act {
                Act::Wake(nap) => nap.wake(),
                Act::Do(act) => act(),
                Act::World(act) => act(self),
            }
            return;
        };
        if (at, count) == CLIENTS {
            match act {
                Act::Wake(nap) => nap.wake(),
                Act::Do(act) => act(),
                Act::World(act) => act(self),
            }
            self.clients.run();
            return;
        }
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        if place.process.is_none() || place.count != count {
            return;
        }
        if place.is_paused {
            place.deferred.push_back(act);
            return;
        }
        match act {
            Act::Wake(nap) => nap.wake(),
            Act::Do(act) => act(),
            Act::World(act) => act(self),
        }
        self.run(at);
    }

    /// Delivers a request of a client.
    pub(super) fn receive(&mut self, at: usize, request: Request, client: oneshot::Sender<Answer>) {
        let time = self.time.clone();
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        let Some(process) = &place.process else {
            // The connection is refused.
            return reply(&time, 1, client, Answer::Failed);
        };
        if process.stop.is_none() {
            return reply(&time, 1, client, Answer::Failed);
        }
        if place.is_paused {
            let act = move |hosts: &mut Self| hosts.receive(at, request, client);
            place.deferred.push_back(Act::World(Box::new(act)));
            return;
        }
        let (id, pending) = (request.id, Arc::clone(&process.pending));
        lock(&pending).insert(id, client);
        let served = serve(
            time,
            Arc::clone(&process.stack),
            process.environment.clone(),
            request,
            pending,
        );
        process.tasks.spawn(served);
        self.run(at);
    }
}

/// Sends an answer to a client.
fn reply(time: &Time, after: u64, client: oneshot::Sender<Answer>, answer: Answer) {
    let act = Act::Do(Box::new(move || drop(client.send(answer))));
    time.after(after, Some(CLIENTS), act);
}

async fn serve(
    time: Time,
    stack: Arc<Stack>,
    environment: Environment,
    request: Request,
    pending: Pending,
) {
    let context = |run: &str| {
        let mut context = Context::builder()
            .thread_id(ThreadId::new(request.thread.as_str()))
            .run_id(RunId::new(run))
            .environment(environment.clone())
            .build();
        context.extensions_mut().insert(tenant_of(&request.thread));
        context
    };
    let made = match request.what {
        Asks::Start { text } => ChatRequest::user(text).with_context(context(&request.client)),
        Asks::Reply { replies } => {
            // The request that brings a reply has an id of its own.
            let id = format!("{}.reply.{}", request.client, request.id);
            let mut made = ChatRequest::new(Transcript::new()).with_context(context(&id));
            made.resume = Some(Resume::new(ResumePoint::InStore, replies));
            made
        }
    };
    let cut = request.cut.map_or(Duration::MAX, Duration::from_millis);
    let driven = pin!(drive(stack, made));
    // The rest is dropped when the client has disconnected.
    let driven = match select(driven, environment.clock().sleep(cut)).await {
        Either::Left((driven, _)) => Some(driven),
        Either::Right(_) => None,
    };
    let (id, tag) = (request.id, request.tag);
    let (what, answer) = match driven {
        Some(Ok(Outcome::Interrupted)) => (
            What::Told(format!("{tag} is interrupted")),
            Answer::Interrupted,
        ),
        Some(Ok(outcome)) => {
            let outcome = end_of(&Ok(outcome));
            let answer = Answer::Finished(outcome.clone());
            (What::Finished { tag, outcome }, answer)
        }
        Some(Err(error)) => {
            let code = error.code().unwrap_or_default();
            let told = format!("{tag} failed, {:?} {code}: {error:#}", error.kind());
            (What::Told(told), Answer::Failed)
        }
        None => (
            What::Told(format!("the client of {tag} disconnected")),
            Answer::Failed,
        ),
    };
    time.note(None, what);
    let client = lock(&pending).remove(&id);
    if let Some(client) = client {
        let after = time.dice(|dice| dice.range(1, 5));
        reply(&time, after, client, answer);
    }
}

/// Drives a request to its end.
async fn drive(stack: Arc<Stack>, request: ChatRequest) -> Result<Outcome, Error> {
    let mut body = stack.agent.clone().oneshot(request).await?.body;
    while let Some(event) = body.next().await {
        if let Event::Finish(finish) = event? {
            return Ok(finish.outcome);
        }
    }
    Err(Error::truncated())
}
