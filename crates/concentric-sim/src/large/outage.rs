//! A provider that fails, and the processes that call it: with the layers of the product as they are, in simulated time,
//! or with a client and a gateway that each repeat a failed call twice.

use crate::{
    dice::Dice,
    small::{Act, ProcessClock, Retries, Tasks, Time, environment, lock},
};
use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Context, Environment, Error, ErrorKind, Event,
    EventStream, FinishReason, Usage,
};
use concentric_layers::{
    CircuitBreakerLayer, RateLimitLayer, RetryModel, Shared, rate_limit::Quota,
};
use concentric_store::{MemoryStore, Options};
use futures_util::{StreamExt, stream};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

/// How a provider fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A share of the requests fails.
    Errors(f64),
    /// It accepts so many requests a second, and rejects the others with a status of 429.
    Accepts(u64),
}

/// Who repeats failed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Three retry layers around a circuit and a shared quota.
    Layers,
    /// Three attempts of a client at a gateway, which makes three attempts, with a pause of a second after each.
    Naive,
}

/// A fault of a provider, and the calls of four processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) fault: Fault,
    pub(super) policy: Policy,
    /// How long it lasts, in seconds.
    pub(super) lasts: u64,
    /// The calls a second of all processes.
    pub(super) calls: u64,
}

/// What a provider and its callers see.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// The calls that began in the fault, and those that were answered.
    pub(super) calls: u64,
    pub(super) answered: u64,
    /// The requests that the provider received in the fault, and the most in a second at any time.
    pub(super) requests: u64,
    pub(super) most: u64,
    /// The milliseconds from the end of the fault to the begin of the last call that failed.
    pub(super) recovered: u64,
    seconds: Vec<u64>,
}

/// The seconds before and after a fault.
const BEFORE: u64 = 60;
const AFTER: u64 = 900;

const PROCESSES: u64 = 4;

#[derive(Clone)]
struct Provider {
    outage: Outage,
    time: Time,
    seen: Arc<Mutex<Seen>>,
}

impl Outage {
    fn ends(&self) -> u64 {
        (BEFORE + self.lasts) * 1_000
    }

    fn is_in(&self, at: u64) -> bool {
        (BEFORE * 1_000..self.ends()).contains(&at)
    }

    /// Simulates the calls from before to after the fault.
    ///
    /// # Errors
    ///
    /// A runtime can't be built.
    pub(super) fn run(self, seed: u64) -> std::io::Result<Seen> {
        let dice = Dice::new(seed);
        let time = Time::new(dice.fork(0));
        let tasks = Tasks::new()?;
        let seen = Arc::default();
        let provider = Provider {
            outage: self,
            time: time.clone(),
            seen: Arc::clone(&seen),
        };
        let clock = || ProcessClock::new(time.clone(), None, 0, Arc::default());
        let store = MemoryStore::with_options(Options::new().clock(clock()));
        for n in 0..PROCESSES {
            let place = usize::try_from(n).unwrap_or_default();
            let environment = environment(clock(), (place, 0), dice.fork(n + 1));
            let model = provider.clone().model(&store, &environment);
            let calls = Arc::new(Calls {
                provider: provider.clone(),
                environment,
                model,
            });
            let dice = dice.fork(n + 101);
            tasks.spawn(calls.arrive(dice));
        }
        tasks.run();
        while let Some((_, act)) = time.next() {
            match act {
                Act::Wake(nap) => nap.wake(),
                Act::Do(act) => act(),
                Act::World(_) => {}
            }
            tasks.run();
        }
        let mut seen = lock(&seen).clone();
        seen.most = seen.seconds.iter().copied().max().unwrap_or_default();
        Ok(seen)
    }
}

impl Provider {
    /// Answers or rejects a request after some milliseconds.
    async fn answer(self, request: ChatRequest) -> Result<ChatResponse<EventStream>, Error> {
        let at = self.time.now();
        let is_in_fault = self.outage.is_in(at);
        let in_second = {
            let mut seen = lock(&self.seen);
            let second = usize::try_from(at / 1_000).unwrap_or_default();
            if seen.seconds.len() <= second {
                seen.seconds.resize(second + 1, 0);
            }
            seen.requests += u64::from(is_in_fault);
            let requests = seen.seconds.get_mut(second);
            requests.map_or(0, |requests| {
                *requests += 1;
                *requests
            })
        };
        let (wait, luck) = self.time.dice(|dice| (dice.range(50, 250), dice.share()));
        let clock = request.context.environment().clone();
        clock.clock().sleep(Duration::from_millis(wait)).await;
        match self.outage.fault {
            Fault::Errors(share) if is_in_fault && luck < share => {
                let error = Error::new(ErrorKind::Server, "the provider failed");
                return Err(error.with_status(500));
            }
            Fault::Accepts(most) if is_in_fault && in_second > most => {
                let error = Error::new(ErrorKind::RateLimited, "too many requests");
                return Err(error
                    .with_status(429)
                    .with_retry_after(Duration::from_secs(1)));
            }
            _ => {}
        }
        let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
        let events = [Ok(Event::text("yes")), Ok(finish)];
        Ok(ChatResponse::new(EventStream::new(stream::iter(events))))
    }

    /// The provider as a process calls it.
    fn model(self, store: &MemoryStore, environment: &Environment) -> BoxModel {
        let (policy, calls) = (self.outage.policy, self.outage.calls);
        let provider = service_fn(move |request: ChatRequest| self.clone().answer(request));
        if policy == Policy::Naive {
            return BoxModel::new(provider);
        }
        let retry = || RetryLayer::new(RetryModel::new(3).budget(Retries::default()));
        // Five times of what is used.
        let quota = Quota::per(Duration::from_secs(1)).requests(5 * calls);
        let shared =
            Shared::new(Arc::new(store.clone()), "provider").environment(environment.clone());
        let model = ServiceBuilder::new()
            .layer(retry())
            .layer(retry())
            .layer(retry())
            .layer(CircuitBreakerLayer::new("provider"))
            .layer(RateLimitLayer::new(quota).shared(shared))
            .service(provider);
        BoxModel::new(model)
    }
}

/// The calls of a process.
struct Calls {
    provider: Provider,
    environment: Environment,
    model: BoxModel,
}

impl Calls {
    async fn sleep(&self, millis: u64) {
        let clock = self.environment.clock();
        clock.sleep(Duration::from_millis(millis)).await;
    }

    /// Begins calls at random times.
    async fn arrive(self: Arc<Self>, mut dice: Dice) {
        let outage = self.provider.outage;
        let end = outage.ends() + AFTER * 1_000;
        let mean = 1_000.0 * PROCESSES as f64 / outage.calls as f64;
        while self.provider.time.now() < end {
            let share = 1.0 - dice.share();
            self.sleep((-share.ln() * mean) as u64).await;
            drop(tokio::spawn(Arc::clone(&self).call()));
        }
    }

    async fn call(self: Arc<Self>) {
        let time = &self.provider.time;
        let began = time.now();
        let times = match self.provider.outage.policy {
            Policy::Layers => 1,
            Policy::Naive => 9,
        };
        let mut is_answered = false;
        for attempt in 0..times {
            if attempt > 0 {
                self.sleep(1_000).await;
            }
            is_answered = self.attempt().await.is_ok();
            if is_answered {
                break;
            }
        }
        let outage = self.provider.outage;
        let mut seen = lock(&self.provider.seen);
        if outage.is_in(began) {
            seen.calls += 1;
            seen.answered += u64::from(is_answered);
        }
        if !is_answered && began >= outage.ends() {
            seen.recovered = seen.recovered.max(began - outage.ends());
        }
    }

    async fn attempt(&self) -> Result<(), Error> {
        let context = Context::builder().environment(self.environment.clone());
        let request = ChatRequest::user("?").with_context(context.build());
        let mut body = self.model.clone().oneshot(request).await?.body;
        while let Some(event) = body.next().await {
            drop(event?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacked_retries_add_less_than_a_third_in_an_outage() {
        let outage = |policy| Outage {
            fault: Fault::Errors(1.0),
            policy,
            lasts: 60,
            calls: 10,
        };
        let seen = outage(Policy::Layers).run(7).unwrap();
        assert!(seen.calls > 500 && seen.answered == 0, "{seen:?}");
        assert!(10 * seen.requests <= 13 * seen.calls, "{seen:?}");
        assert_eq!(seen, outage(Policy::Layers).run(7).unwrap());
        // The calls that begin in the last seconds are repeated after it.
        let naive = outage(Policy::Naive).run(7).unwrap();
        assert!(naive.requests > 7 * naive.calls, "{naive:?}");
    }
}
