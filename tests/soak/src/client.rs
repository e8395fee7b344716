//! Clients that read streams, reply to interrupts, and disconnect.

use crate::{Fault, dice::Dice};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::timeout};

/// The time of silence after which a client considers a stream dead. The server sends a comment
/// after 15 seconds of silence.
const SILENCE: Duration = Duration::from_secs(60);

/// The outcomes of the streams, counted by name. A name that begins with `!` is a violation.
#[derive(Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn failures(&self) -> Vec<String> {
        let violations = self.0.iter().filter(|(name, _)| name.starts_with('!'));
        let mut failures: Vec<_> = violations
            .map(|(name, n)| format!("{n} times: {name}"))
            .collect();
        for wanted in [
            "finished",
            "failed",
            "hung up",
            "interrupted",
            "approved",
            "denied",
        ] {
            if !self.0.contains_key(wanted) {
                failures.push(format!("no stream was {wanted}: the load is incomplete"));
            }
        }
        failures
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "streams:")?;
        for (name, n) in &self.0 {
            write!(f, " {n} {name},")?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Clients {
    url: String,
    seed: u64,
    http: Client<HttpConnector, Full<Bytes>>,
    counts: Arc<Mutex<Counts>>,
}

/// The end of a stream from the client's view.
enum Ended {
    HungUp,
    Finished { asks: Vec<String> },
    Failed,
}

impl Clients {
    pub(crate) fn new(server: &str, seed: u64) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(5))
            .pool_timer(TokioTimer::new())
            .build_http();
        Self {
            url: format!("{server}/agent"),
            seed,
            http,
            counts: Arc::default(),
        }
    }

    fn count(&self, name: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.0.entry(name).or_default() += 1;
    }

    /// Makes one run of each kind, which must succeed.
    pub(crate) async fn warm_up(&self) -> Result<(), Fault> {
        for prompt in ["calm talk", "calm look", "calm pay"] {
            let thread = format!("warm-up {prompt}");
            match self.run(&thread, "r1", user(prompt), u64::MAX).await? {
                Ended::Finished { asks } if asks.is_empty() != prompt.contains("pay") => {}
                _ => return Err(format!("the warm-up with {prompt:?} did not finish").into()),
            }
        }
        Ok(())
    }

    /// Returns the outcomes of all streams so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *counts)
    }

    /// Starts the clients with these numbers. Each makes one run after the other until `until`.
    pub(crate) fn start(&self, numbers: Range<usize>, until: Instant) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for number in numbers {
            let (clients, mut dice) = (self.clone(), Dice::new(self.seed, number as u64));
            tasks.spawn(async move {
                let mut turn = 0;
                while Instant::now() < until {
                    turn += 1;
                    let thread = format!("thread {number} {turn}");
                    match clients.turn(&thread, &mut dice).await {
                        Ok(ended) => clients.count(ended),
                        Err(error) => {
                            clients.count("!failed to send, or was cut off");
                            eprintln!("{thread}: {error}");
                        }
                    }
                }
            });
        }
        tasks
    }

    /// Runs a user turn: a prompt, and the replies to its interrupts. Returns its outcome.
    async fn turn(&self, thread: &str, dice: &mut Dice) -> Result<&'static str, Fault> {
        let prompt = match dice.below(10) {
            0 | 1 => "pay",
            2 | 3 => "look",
            _ => "talk",
        };
        let patience = |dice: &mut Dice| match dice.below(4) {
            0 => dice.below(40),
            _ => u64::MAX,
        };
        let mut patience_now = patience(dice);
        let mut run = 1;
        let mut body = user(prompt);
        loop {
            match self
                .run(thread, &format!("r{run}"), body, patience_now)
                .await?
            {
                Ended::HungUp => return Ok("hung up"),
                Ended::Failed => return Ok("failed"),
                Ended::Finished { asks } if asks.is_empty() => return Ok("finished"),
                Ended::Finished { asks } => {
                    self.count("interrupted");
                    let approved = match dice.below(8) {
                        0 => return Ok("left without a reply"),
                        1 | 2 => false,
                        _ => true,
                    };
                    self.count(if approved { "approved" } else { "denied" });
                    run += 1;
                    patience_now = patience(dice);
                    body = user(prompt);
                    let resume: Vec<_> = asks
                        .iter()
                        .map(|id| {
                            let payload = json!({"approved": approved});
                            json!({"interruptId": id, "status": "resolved", "payload": payload})
                        })
                        .collect();
                    body["resume"] = resume.into();
                }
            }
        }
    }

    /// Sends a request, and reads its stream to the end, or `patience` chunks of it.
    async fn run(
        &self,
        thread: &str,
        run: &str,
        mut body: Value,
        patience: u64,
    ) -> Result<Ended, Fault> {
        body["threadId"] = thread.into();
        body["runId"] = run.into();
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body.to_string()))?;
        let response = self.http.request(request).await?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status()).into());
        }
        let mut stream = response.into_body();
        let mut text = String::new();
        let mut pieces = 0;
        let (mut ends, mut asks, mut last, mut has_failed) = (0, Vec::new(), false, false);
        while let Some(frame) = timeout(SILENCE, stream.frame()).await? {
            pieces += 1;
            if pieces > patience {
                return Ok(Ended::HungUp);
            }
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            text.push_str(std::str::from_utf8(&data)?);
            while let Some(end) = text.find("\n\n") {
                let event: String = text.drain(..end + 2).collect();
                let Some(event) = event.strip_prefix("data: ") else {
                    continue;
                };
                let event: Value = serde_json::from_str(event.trim_end())?;
                last = true;
                match event["type"].as_str() {
                    Some("RUN_FINISHED") => {
                        ends += 1;
                        let interrupts = event["outcome"]["interrupts"].as_array();
                        let ids = interrupts.into_iter().flatten();
                        asks.extend(ids.filter_map(|it| it["id"].as_str().map(str::to_owned)));
                    }
                    Some("RUN_ERROR") => (ends, has_failed) = (ends + 1, true),
                    _ => last = false,
                }
            }
        }
        if ends != 1 || !last {
            self.count("!ended without exactly one terminal event at its end");
        }
        match has_failed {
            true => Ok(Ended::Failed),
            false => Ok(Ended::Finished { asks }),
        }
    }
}

fn user(prompt: &str) -> Value {
    json!({
        "messages": [{"id": "m1", "role": "user", "content": prompt}],
        "tools": [], "context": [], "state": {}, "forwardedProps": {},
    })
}
