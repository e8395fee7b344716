//! A worker: it serves requests that it reads from its standard input, and sweeps.

use super::{
    agent::{Wrong, agent, environment},
    history::{Recorder, What},
    load::Settings,
    logged::Logged,
    world::World,
};
use concentric_core::{
    BoxModel, ChatRequest, Context, Environment, Error, Event, Reply, Resume, ResumePoint, RunId,
    ThreadId, Transcript,
};
use concentric_layers::suspend::Sweeper;
use concentric_store::{Options, PostgresStore};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use std::{io::BufRead, path::PathBuf, sync::atomic::Ordering, time::Duration};
use tokio::sync::mpsc;
use tower::ServiceExt;

pub const PART: &str = "CONCENTRIC_CLUSTER_WORKER";

/// What a process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub dir: PathBuf,
    pub url: String,
    pub schema: String,
    pub worker: (usize, u32),
    pub clock_off: i64,
}

/// A line of the standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    Start {
        request: u64,
        thread: String,
        run: String,
        text: String,
    },
    Reply {
        request: u64,
        thread: String,
        run: String,
        replies: Vec<Reply>,
    },
    /// Sets by how many seconds the clock is wrong.
    Clock(i64),
}

/// A line of the standard output, after `> `.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Ready,
    Finished { request: u64, outcome: String },
    Failed { request: u64, code: String },
}

impl Answer {
    pub const fn request(&self) -> Option<u64> {
        match self {
            Self::Ready => None,
            Self::Finished { request, .. } | Self::Failed { request, .. } => Some(*request),
        }
    }
}

fn say(answer: &Answer) {
    println!("> {}", serde_json::to_string(answer).unwrap());
}

#[test]
#[ignore = "a child process of the test of the cluster"]
fn worker() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let part: Part = serde_json::from_str(&part).unwrap();
    let (orders, queue) = mpsc::unbounded_channel();
    // The channel is closed with the standard input, and the worker then ends.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order: Order = serde_json::from_str(&line.unwrap()).unwrap();
            if orders.send(order).is_err() {
                break;
            }
        }
    });
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(serve(part, queue));
}

async fn open(part: &Part) -> PostgresStore {
    let options = || Options::new().schema(part.schema.as_str()).pool_size(8);
    loop {
        match PostgresStore::open_with(&part.url, options()).await {
            Ok(store) => return store,
            // The server may be starting.
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn serve(part: Part, mut orders: mpsc::UnboundedReceiver<Order>) {
    let world = World::new(&part.dir);
    let recorder = Recorder::new(world.clone(), part.worker);
    let clock = Wrong::default();
    clock.0.store(part.clock_off, Ordering::Relaxed);
    let environment = environment(clock.clone());
    let store = Logged {
        inner: open(&part).await,
        recorder: recorder.clone(),
    };
    let settings = Settings::read();
    let (suspend, agent) = agent(&world, &store, &settings);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let sweeper = Sweeper::new(&suspend, agent.clone())
        .environment(environment.clone())
        .every(settings.sweep)
        .run(async { drop(stopped.await) });
    let sweeper = tokio::spawn(sweeper);
    say(&Answer::Ready);
    let mut requests = tokio::task::JoinSet::new();
    while let Some(order) = orders.recv().await {
        let (request, run, made) = match order {
            Order::Clock(off) => {
                clock.0.store(off, Ordering::Relaxed);
                continue;
            }
            Order::Start {
                request,
                thread,
                run,
                text,
            } => {
                let context = context(&environment, &thread, &run);
                (request, run, ChatRequest::user(text).with_context(context))
            }
            Order::Reply {
                request,
                thread,
                run,
                replies,
            } => {
                // The request that brings a reply has an id of its own.
                let context = context(&environment, &thread, &format!("{run}.reply.{request}"));
                let mut made = ChatRequest::new(Transcript::new()).with_context(context);
                made.resume = Some(Resume::new(ResumePoint::InStore, replies));
                (request, run, made)
            }
        };
        let (agent, recorder) = (agent.clone(), recorder.clone());
        requests.spawn(async move {
            let answer = match drive(agent, made).await {
                Ok(outcome) => {
                    recorder.note(What::Finished {
                        client: run,
                        request,
                        outcome: outcome.clone(),
                    });
                    Answer::Finished { request, outcome }
                }
                Err(error) => {
                    let code = error.code().unwrap_or("none").to_owned();
                    recorder.note(What::Failed {
                        client: run,
                        request,
                        code: code.clone(),
                        error: format!("{:?}: {error:#}", error.kind()),
                    });
                    Answer::Failed { request, code }
                }
            };
            say(&answer);
        });
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
    drop(stop);
    sweeper.await.unwrap();
}

fn context(environment: &Environment, thread: &str, run: &str) -> Context {
    Context::builder()
        .thread_id(ThreadId::new(thread))
        .run_id(RunId::new(run))
        .environment(environment.clone())
        .build()
}

/// Drives a request to its end.
async fn drive(agent: BoxModel, request: ChatRequest) -> Result<String, Error> {
    let mut body = agent.oneshot(request).await?.body;
    let mut outcome = None;
    while let Some(event) = body.next().await {
        if let Event::Finish(finish) = event? {
            outcome = Some(format!("{:?}", finish.outcome));
        }
    }
    Ok(outcome.unwrap())
}
