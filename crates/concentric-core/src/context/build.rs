use super::{Context, Local, Opaque, Run, Values, cancel::Cancel, head::Holds};
use crate::{environment::Environment, outbox::Outbox};
use concentric_proto::{Phase, RequestId, RunId, Str, StreamId, ThreadId};
use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
    time::SystemTime,
};

#[derive(Clone, Default)]
pub(super) struct RunIds {
    pub(super) agent: Option<Str>,
    pub(super) run: OnceLock<RunId>,
    pub(super) thread: Option<ThreadId>,
    pub(super) request: OnceLock<RequestId>,
    pub(super) stream: OnceLock<StreamId>,
}

impl Context {
    /// Creates the context of a new run, with new ids and the system's clock.
    pub fn new() -> Self {
        let run = Run::new(RunIds::default(), None, None, Environment::system());
        Self::in_run(run, None)
    }

    #[inline(always)]
    fn in_run(run: Run, local: Option<Arc<Local>>) -> Self {
        Self {
            run: Arc::new(run),
            local,
            phase: Phase::Run,
            depth: 0,
            step: 0,
        }
    }

    /// Creates a builder for the context of a new run.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// Creates a builder for the context of a nested run, such as a sub-agent's.
    ///
    /// The nested run has this run's thread, request, deadline, environment, extensions and
    /// [gates](crate::RunOverrides::gate), and is cancelled with it.
    pub fn child(&self) -> ContextBuilder {
        ContextBuilder {
            ids: RunIds {
                agent: None,
                run: OnceLock::new(),
                stream: OnceLock::new(),
                ..self.run.ids.clone()
            },
            deadline: self.deadline(),
            environment: Some(self.run.environment.clone()),
            extensions: self.local().extensions.clone(),
            gates: self.local().gates.clone(),
            parent: Some(self.clone()),
        }
    }
}

/// Builds a [`Context`].
#[derive(Default)]
pub struct ContextBuilder {
    ids: RunIds,
    deadline: Option<SystemTime>,
    environment: Option<Environment>,
    extensions: Values,
    gates: Option<Opaque>,
    parent: Option<Context>,
}

impl ContextBuilder {
    /// Sets the name of the agent.
    #[must_use]
    pub fn agent(mut self, name: impl Into<Str>) -> Self {
        self.ids.agent = Some(name.into());
        self
    }

    /// Sets the id of the run; the default is a new id.
    #[must_use]
    pub fn run_id(mut self, id: RunId) -> Self {
        self.ids.run = id.into();
        self
    }

    /// Sets the id of the conversation.
    #[must_use]
    pub fn thread_id(mut self, id: ThreadId) -> Self {
        self.ids.thread = Some(id);
        self
    }

    /// Sets the id of the request that started the run; the default is a new id.
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        self.ids.request = id.into();
        self
    }

    /// Sets the id of the stream that delivers the events; the default is a new id.
    #[must_use]
    pub fn stream_id(mut self, id: StreamId) -> Self {
        self.ids.stream = id.into();
        self
    }

    /// Sets the deadline of the run, in wall time; a nested run keeps the earlier one of its parent's
    /// and its own.
    #[must_use]
    pub fn deadline(mut self, deadline: SystemTime) -> Self {
        // A nested run must not outlive its parent.
        self.deadline = Some(self.deadline.map_or(deadline, |d| d.min(deadline)));
        self
    }

    /// Sets the source of time, ids and randomness.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Sets the values that travel with the request.
    #[must_use]
    pub fn extensions(mut self, extensions: http::Extensions) -> Self {
        self.extensions = Values::new(extensions);
        self
    }

    /// Creates the context.
    pub fn build(self) -> Context {
        let environment = self.environment.unwrap_or_else(Environment::system);
        let has_local = self.extensions.0.is_some() || self.gates.is_some();
        let local = has_local.then(|| {
            Arc::new(Local {
                extensions: self.extensions,
                gates: self.gates,
                ..Local::NONE
            })
        });
        let parent = self.parent.map(Box::new);
        Context::in_run(
            Run::new(self.ids, parent, self.deadline, environment),
            local,
        )
    }
}

impl Run {
    // Inlined always, and most of it is constant: a builder and a run have some hundred bytes.
    #[inline(always)]
    fn new(
        ids: RunIds,
        parent: Option<Box<Context>>,
        deadline: Option<SystemTime>,
        environment: Environment,
    ) -> Self {
        Self {
            ids,
            parent,
            cancel: Cancel::default(),
            deadline,
            environment,
            outbox: Outbox::default(),
            events: AtomicU64::new(0),
            effects: AtomicU64::new(0),
            deferred: Mutex::default(),
            holds: Holds::default(),
            live: OnceLock::new(),
            slots: OnceLock::new(),
            noted: OnceLock::new(),
            usage: OnceLock::new(),
            drivers: AtomicUsize::new(0),
            had_outcome: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBuilder").finish_non_exhaustive()
    }
}
