use crate::{
    endpoint::RestateEndpoint,
    events::RunEvents,
    live::LiveRuns,
    object,
    shared::{Limits, Shared, Timeouts, Waits, configuration},
};
use concentric_core::{BoxModel, Error, Str, digest::Digest};
use restate_sdk::endpoint::Endpoint;
use std::{fmt, sync::Arc, time::Duration};

/// An agent as a virtual object of Restate, with one object per conversation.
///
/// See the [crate docs](crate) for an example.
#[must_use]
pub struct RestateAgents {
    name: Str,
    agent: BoxModel,
    version: Option<Str>,
    waits: Waits,
    limits: Limits,
    inactivity_timeout: Option<Duration>,
    abort_timeout: Duration,
    max_attempts: Option<u64>,
    retention: Duration,
    identity_keys: Vec<Str>,
    events: RunEvents,
}

const MINUTE: Duration = Duration::from_secs(60);

impl RestateAgents {
    /// Serves `agent` as the object `name`: letters, digits and underscores, as Restate names services.
    ///
    /// Its model calls and rounds are steps if its stack has `DurableLayer` and `DurableTools` of
    /// `concentric-layers`; without them, a replay repeats them.
    pub fn new(name: impl Into<Str>, agent: BoxModel) -> Self {
        Self {
            name: name.into(),
            agent,
            version: None,
            waits: Waits::default(),
            limits: Limits {
                deadline: 10 * MINUTE,
                step: 5 * MINUTE,
            },
            inactivity_timeout: None,
            abort_timeout: 30 * MINUTE,
            max_attempts: None,
            retention: 24 * 60 * MINUTE,
            identity_keys: Vec::new(),
            events: RunEvents::new(),
        }
    }

    /// Sets the version of the agent's code; the default is derived from the description of its stack. The version of
    /// this crate is part of it.
    ///
    /// An invocation is continued by the version that began it. Change the version whenever a change of the code
    /// changes what a run does between two steps, and deploy the new one beside the old one.
    pub fn version(mut self, version: impl Into<Str>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Sets where runs wait for replies; the default is [`Waits::Return`]. Change it only while no run waits in its
    /// invocation: that invocation has the object, and a reply would wait for its end.
    pub const fn waits(mut self, waits: Waits) -> Self {
        self.waits = waits;
        self
    }

    /// Sets the time limit of an invocation, from its beginning; the default is 10 minutes. Its steps fail from
    /// then on with [`ErrorKind::Timeout`](concentric_core::ErrorKind::Timeout). With [`Waits::Await`] it begins again
    /// after each wait.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.limits.deadline = deadline;
        self
    }

    /// Sets the time limit of a step; the default is 5 minutes.
    pub const fn step_timeout(mut self, timeout: Duration) -> Self {
        self.limits.step = timeout;
        self
    }

    /// Sets the time after which Restate asks an idle invocation to suspend; the default is a minute more than the
    /// [time limit of a step](Self::step_timeout). After a step that takes longer, another attempt continues, so the
    /// next one counts as one that may have been executed before: a call of its round whose effect must not happen
    /// twice and is not in a ledger is not executed, but asked about.
    pub const fn inactivity_timeout(mut self, timeout: Duration) -> Self {
        self.inactivity_timeout = Some(timeout);
        self
    }

    /// Sets the time after which Restate aborts an invocation that it has asked to suspend; the default is 30
    /// minutes. It must be longer than the [deadline](Self::deadline).
    pub const fn abort_timeout(mut self, timeout: Duration) -> Self {
        self.abort_timeout = timeout;
        self
    }

    /// Sets the number of attempts after which Restate pauses an invocation for an operator; the default is that of
    /// the server.
    pub const fn max_attempts(mut self, attempts: u64) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long Restate keeps the result of a run with an idempotency key; the default is 24 hours.
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the public keys of the Restate servers that may call the service (`publickeyv1_..`). Without a key, the
    /// service is served on loopback addresses only.
    pub fn identity_keys(mut self, keys: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        self.identity_keys = keys.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the channel of the runs' events.
    pub fn events(mut self, events: RunEvents) -> Self {
        self.events = events;
        self
    }

    /// Creates the endpoint that Restate calls.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration): the abort timeout is not longer than
    /// the deadline (code `abort_timeout`), the name is not one of a service, or a key is invalid.
    pub fn endpoint(self) -> Result<RestateEndpoint, Error> {
        let Limits { deadline, step } = self.limits;
        if self.abort_timeout <= deadline {
            let why = format!(
                "the abort timeout of {:?} is not longer than the deadline of {deadline:?}: Restate would discard \
                 steps that are still made, and make them again",
                self.abort_timeout
            );
            return Err(configuration(why).with_code("abort_timeout"));
        }
        let limits = Limits {
            deadline,
            step: step.min(deadline),
        };
        let stack = self.agent.describe();
        let version = self.version.as_ref().map_or("", Str::as_str);
        let version = Digest::of_fields(
            "concentric/restate/version",
            &[
                version.as_bytes(),
                match version {
                    "" => stack.as_bytes(),
                    _ => b"",
                },
                self.waits.name(),
                env!("CARGO_PKG_VERSION").as_bytes(),
            ],
        );
        let shared = Arc::new(Shared {
            agent: self.agent,
            version: version.to_string().into(),
            waits: self.waits,
            limits,
            live: LiveRuns::default(),
            events: self.events,
        });
        let timeouts = Timeouts {
            inactivity: self.inactivity_timeout.unwrap_or(limits.step + MINUTE),
            abort: self.abort_timeout,
            max_attempts: self.max_attempts,
            retention: self.retention,
        };
        let mut endpoint = Endpoint::builder().bind(object::define(&self.name, shared, &timeouts)?);
        for key in &self.identity_keys {
            endpoint = endpoint
                .identity_key(key)
                .map_err(|_| configuration("an identity key of Restate is invalid".into()))?;
        }
        let is_checked = !self.identity_keys.is_empty();
        Ok(RestateEndpoint::new(endpoint.build(), is_checked))
    }
}

impl fmt::Debug for RestateAgents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestateAgents")
            .field("name", &self.name)
            .field("agent", &self.agent.describe())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
