//! The virtual object: its definition and its handlers.

use crate::{
    drive::{Attempt, Ended, UNWRITABLE, unwritable},
    journal::{Begin, millis, time},
    shared::{Shared, Timeouts, configuration},
    wire::{ReplyInput, RunInput, RunOutput, ThreadState, Waiting},
};
use concentric_core::{
    ChatRequest, Context, Environment, Error, ErrorKind, Finish, Outcome, RunId, SideEffects, Str,
    ThreadId, Transcript, Turn, durable::ReplayEnvironment, run_state::RunState, store::Tenant,
};
use restate_sdk::{
    context::RunFuture,
    discovery,
    endpoint::{self, ContextInternal, InputMetadata},
    errors::{HandlerError, HandlerResult, TerminalError},
    serde::{Json, PayloadMetadata},
    service::{
        Service, ServiceDefinition,
        macro_support::{ServiceBoxFuture, service_definition},
    },
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    error::Error as StdError,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The limit of a value of the object's state.
const MAX_STATE: usize = 8 << 20;

// The keys of the object's state.
const WAITING: &str = "waiting";
const HISTORY: &str = "history";
const DRIVING: &str = "driving";

/// Defines the object `name`.
pub(crate) fn define(
    name: &str,
    shared: Arc<Shared>,
    timeouts: &Timeouts,
) -> Result<ServiceDefinition, Error> {
    let handlers = [
        handler::<Json<RunOutput>>("run", Some(input::<Json<RunInput>>()), None),
        handler::<Json<RunOutput>>("reply", Some(input::<Json<ReplyInput>>()), None),
        handler::<Json<bool>>("cancel", None, Some(discovery::HandlerType::Shared)),
        handler::<Json<ThreadState>>("state", None, Some(discovery::HandlerType::Shared)),
    ];
    let handlers: Option<Vec<_>> = handlers.into_iter().collect();
    let of = discovery::ServiceName::try_from(name).ok().zip(handlers);
    let Some((of, handlers)) = of else {
        return Err(configuration(format!(
            "`{name}` is not the name of a service of Restate"
        )));
    };
    let millis = |time: Duration| u64::try_from(time.as_millis()).ok();
    let discovery = discovery::Service {
        ty: discovery::ServiceType::VirtualObject,
        name: of,
        handlers,
        documentation: None,
        metadata: [("version".to_owned(), shared.version.to_string())].into(),
        abort_timeout: millis(timeouts.abort),
        inactivity_timeout: millis(timeouts.inactivity),
        journal_retention: None,
        idempotency_retention: millis(timeouts.retention),
        enable_lazy_state: None,
        ingress_private: None,
        // A run continues on another worker within seconds.
        retry_policy_initial_interval: Some(50),
        retry_policy_max_interval: Some(2_000),
        retry_policy_max_attempts: timeouts.max_attempts,
        retry_policy_exponentiation_factor: Some(2.0),
        retry_policy_on_max_attempts: timeouts
            .max_attempts
            .map(|_| discovery::RetryPolicyOnMaxAttempts::Pause),
    };
    Ok(service_definition(Object(shared), discovery))
}

fn input<I: PayloadMetadata>() -> discovery::InputPayload {
    discovery::InputPayload::from_metadata::<I>()
}

fn handler<O: PayloadMetadata>(
    name: &str,
    input: Option<discovery::InputPayload>,
    ty: Option<discovery::HandlerType>,
) -> Option<discovery::Handler> {
    Some(discovery::Handler {
        name: discovery::HandlerName::try_from(name).ok()?,
        input: Some(input.unwrap_or_else(discovery::InputPayload::empty)),
        output: Some(discovery::OutputPayload::from_metadata::<O>()),
        ty,
        documentation: None,
        metadata: Default::default(),
        abort_timeout: None,
        inactivity_timeout: None,
        journal_retention: None,
        idempotency_retention: None,
        workflow_completion_retention: None,
        enable_lazy_state: None,
        ingress_private: None,
        retry_policy_initial_interval: None,
        retry_policy_max_interval: None,
        retry_policy_max_attempts: None,
        retry_policy_exponentiation_factor: None,
        retry_policy_on_max_attempts: None,
    })
}

struct Object(Arc<Shared>);

impl Service for Object {
    type Future = ServiceBoxFuture;

    fn handle(&self, ctx: ContextInternal) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            match ctx.handler_name() {
                "run" => {
                    let (Json(input), of) = ctx.input::<Json<RunInput>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).run(input).await;
                    ctx.handle_handler_result(result);
                }
                "reply" => {
                    let (Json(input), of) = ctx.input::<Json<ReplyInput>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).reply(input).await;
                    ctx.handle_handler_result(result);
                }
                "cancel" => {
                    let ((), of) = ctx.input::<()>().await;
                    let result = Invocation::new(&ctx, &shared, &of).cancel().await;
                    ctx.handle_handler_result(result);
                }
                "state" => {
                    let ((), of) = ctx.input::<()>().await;
                    let result = Invocation::new(&ctx, &shared, &of).state().await;
                    ctx.handle_handler_result(result);
                }
                other => {
                    let service = ctx.service_name();
                    return Err(endpoint::Error::unknown_handler(service, other));
                }
            }
            ctx.end();
            Ok(())
        })
    }
}

/// An attempt at an invocation of a handler.
struct Invocation<'a> {
    ctx: &'a ContextInternal,
    shared: &'a Shared,
    of: &'a InputMetadata,
    // The id of this attempt.
    me: u64,
}

impl<'a> Invocation<'a> {
    fn new(ctx: &'a ContextInternal, shared: &'a Shared, of: &'a InputMetadata) -> Self {
        let me = Environment::system().random().next_u64();
        Self {
            ctx,
            shared,
            of,
            me,
        }
    }

    async fn run(&self, input: RunInput) -> HandlerResult<Json<RunOutput>> {
        let (begin, environment) = self.begin().await?;
        let waiting = self.waiting().await?;
        let run = RunId::new(environment.environment().ids().next("run_"));
        let mut transcript = match waiting {
            Some(_) if !input.withdraw => {
                let why = "a run of the conversation waits for replies";
                let error = Error::new(ErrorKind::Conflict, why).with_code("run_waiting");
                return Ok(Json(RunOutput::failed(run, &error)));
            }
            // The conversation before the round that waits.
            Some((_, state)) => {
                self.ctx.clear(WAITING);
                state.transcript().clone()
            }
            None => self.history().await?,
        };
        for message in input.messages {
            match Turn::message(message) {
                Ok(turn) => transcript.push(turn),
                Err(error) => {
                    let error = Error::new(ErrorKind::InvalidRequest, error.to_string());
                    return Ok(Json(RunOutput::failed(run, &error)));
                }
            }
        }
        let request = ChatRequest::new(transcript);
        let output = self.drive(&begin, &environment, run, input.tenant, request, None);
        output.await.map(Json)
    }

    async fn reply(&self, input: ReplyInput) -> HandlerResult<Json<RunOutput>> {
        let (begin, environment) = self.begin().await?;
        let Some((waiting, state)) = self.waiting().await? else {
            let run = RunId::new(environment.environment().ids().next("run_"));
            let why = "no run of the conversation waits for replies";
            let error = Error::new(ErrorKind::Conflict, why).with_code("run_ended");
            return Ok(Json(RunOutput::failed(run, &error)));
        };
        let run = waiting.run.clone();
        if waiting.tenant != input.tenant {
            let why = "the waiting run has another owner";
            let error = Error::new(ErrorKind::NotFound, why).with_code("run_not_found");
            return Ok(Json(RunOutput::failed(run, &error)));
        }
        let mut request = ChatRequest::resume(state, input.replies);
        if let Some(resume) = request.resume.take() {
            let resume = resume
                .with_messages(input.messages)
                .accepted_at(time(begin.at));
            request.set_resume(resume);
        }
        let before = Some(waiting);
        let output = self.drive(&begin, &environment, run, input.tenant, request, before);
        output.await.map(Json)
    }

    async fn cancel(&self) -> HandlerResult<Json<bool>> {
        if self.shared.live.cancel(&self.of.key) {
            return Ok(Json(true));
        }
        // Another process drives the run: it is cancelled once its step has ended.
        let driving = self.ctx.get::<String>(DRIVING).await?;
        if let Some(invocation) = &driving {
            self.ctx.cancel_invocation(invocation);
        }
        Ok(Json(driving.is_some()))
    }

    async fn state(&self) -> HandlerResult<Json<ThreadState>> {
        let driving = self.ctx.get::<String>(DRIVING).await?;
        let waiting = self.waiting().await?;
        let interrupts = waiting.map(|(_, state)| {
            let interrupts = state.interrupts();
            interrupts.into_iter().cloned().collect()
        });
        Ok(Json(ThreadState {
            driving: driving.map(Str::from),
            interrupts: interrupts.unwrap_or_default(),
            turns: self.history().await?.len(),
        }))
    }

    /// Reads or makes the first record of the invocation.
    async fn begin(&self) -> Result<(Begin, ReplayEnvironment), HandlerError> {
        let mine = Begin {
            by: self.me,
            at: millis(SystemTime::now()),
            version: self.shared.version.clone(),
            seed: seed(),
        };
        let begin = self.ctx.run(|| async { Ok(Json(mine)) }).name("begin");
        let Json(begin) = begin.await?;
        if begin.version != self.shared.version {
            return Err(HandlerError::from(CodeChanged));
        }
        let environment = ReplayEnvironment::new(begin.seed, time(begin.at));
        Ok((begin, environment))
    }

    async fn waiting(&self) -> Result<Option<(Waiting, RunState)>, HandlerError> {
        let Some(Json(waiting)) = self.ctx.get::<Json<Waiting>>(WAITING).await? else {
            return Ok(None);
        };
        let json = waiting.state.get().as_bytes();
        match RunState::from_json(json, MAX_STATE) {
            Ok(state) => Ok(Some((waiting, state))),
            Err(error) => {
                tracing::error!(%error, "the state of a waiting run cannot be read");
                let why = "the state of the waiting run cannot be read";
                Err(TerminalError::new(why).into())
            }
        }
    }

    async fn history(&self) -> Result<Transcript, HandlerError> {
        let history = self.ctx.get::<Json<Transcript>>(HISTORY).await?;
        Ok(history.map(Json::into_inner).unwrap_or_default())
    }

    /// Drives a run to its end, and keeps what the next invocations need. `before` is the state that the
    /// run resumes from.
    async fn drive(
        &self,
        begin: &Begin,
        environment: &ReplayEnvironment,
        run: RunId,
        tenant: Str,
        request: ChatRequest,
        before: Option<Waiting>,
    ) -> HandlerResult<RunOutput> {
        let thread = self.of.key.as_str();
        let mut context = Context::builder()
            .thread_id(ThreadId::new(thread))
            .run_id(run.clone())
            .environment(environment.environment())
            .build();
        context.extensions_mut().insert(Tenant(tenant.clone()));
        let request = request.with_context(context.clone());
        self.ctx.set(DRIVING, self.of.invocation_id.clone());
        if begin.by == self.me {
            self.shared.events.begin(thread);
        }
        let live = self.shared.live.enter(thread);
        let attempt = Attempt {
            ctx: self.ctx,
            shared: self.shared,
            thread,
            live: &live.run,
            me: self.me,
            begin,
            environment,
        };
        let ended = attempt.drive(self.shared.agent.clone(), request).await?;
        self.ctx.clear(DRIVING);
        let (output, state) = match ended {
            Ended::Finished(finish) => self.finished(run, &tenant, &finish, before.is_some()),
            Ended::Failed(error) => {
                let had_effects =
                    error.effects() != SideEffects::None || context.effect_count() > 0;
                let state = match before.is_some() && had_effects {
                    true => Change::Ended(None),
                    // The replies can be sent again.
                    false => Change::None,
                };
                (RunOutput::failed(run, &error), state)
            }
        };
        self.apply(state);
        Ok(output)
    }

    /// The result of a run that has finished.
    fn finished(
        &self,
        run: RunId,
        tenant: &Str,
        finish: &Finish,
        was_waiting: bool,
    ) -> (RunOutput, Change) {
        let kept = match (&finish.outcome, finish.state.as_deref()) {
            (Outcome::Interrupted, Some(state)) => match waiting(&run, tenant, state) {
                Ok(waiting) => Change::Waits(waiting),
                Err(error) => return (RunOutput::failed(run, &error), Change::None),
            },
            _ => match finish.transcript.as_ref().map(json).transpose() {
                Ok(history) if was_waiting => Change::Ended(history),
                Ok(history) => Change::History(history),
                Err(error) => return (RunOutput::failed(run, &error), Change::None),
            },
        };
        let last = finish.transcript.as_ref().and_then(Transcript::last);
        let text = last.map(|turn| turn.as_message().text());
        let output = RunOutput {
            run,
            outcome: Some(finish.outcome.clone()),
            text: text.unwrap_or_default().into(),
            interrupts: finish.interrupts().into_iter().cloned().collect(),
            usage: finish.usage,
            error: None,
        };
        (output, kept)
    }

    fn apply(&self, change: Change) {
        let set = |history: Option<Box<RawValue>>| {
            if let Some(history) = history {
                self.ctx.set(HISTORY, Json(history));
            }
        };
        match change {
            Change::None => {}
            Change::Waits(waiting) => self.ctx.set(WAITING, Json(waiting)),
            Change::History(history) => set(history),
            Change::Ended(history) => {
                self.ctx.clear(WAITING);
                set(history);
            }
        }
    }
}

/// A change of the object's state.
enum Change {
    None,
    Waits(Waiting),
    History(Option<Box<RawValue>>),
    /// The run that waited has ended.
    Ended(Option<Box<RawValue>>),
}

fn waiting(run: &RunId, tenant: &Str, state: &RunState) -> Result<Waiting, Error> {
    let json = state.to_json().map_err(|error| {
        Error::new(ErrorKind::TooLarge, error.to_string()).with_code(UNWRITABLE)
    })?;
    let state = RawValue::from_string(json)
        .map_err(|_| Error::new(ErrorKind::Other, "the state of the run cannot be written"))?;
    Ok(Waiting {
        run: run.clone(),
        tenant: tenant.clone(),
        state: limited("the state of the run", state)?,
    })
}

fn json(value: &impl Serialize) -> Result<Box<RawValue>, Error> {
    let json = serde_json::value::to_raw_value(value)
        .map_err(|_| Error::new(ErrorKind::Other, "the conversation cannot be written"))?;
    limited("the conversation", json)
}

fn limited(what: &str, json: Box<RawValue>) -> Result<Box<RawValue>, Error> {
    match json.get().len() {
        size if size > MAX_STATE => Err(unwritable(what, size, MAX_STATE)),
        _ => Ok(json),
    }
}

/// A seed that cannot be guessed: ids of messages are derived from it.
fn seed() -> [u8; 16] {
    let random = || Environment::system().random().next_u64().to_le_bytes();
    let (first, second) = (random(), random());
    std::array::from_fn(|at| match at.checked_sub(8) {
        None => first.get(at).copied().unwrap_or_default(),
        Some(at) => second.get(at).copied().unwrap_or_default(),
    })
}

// The SDK writes the `Debug` of an error into the journal.
/// The reason to repeat an attempt elsewhere: another version of the code began the invocation.
struct CodeChanged;

impl fmt::Display for CodeChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "code_changed: another version of the code began this invocation; deploy that version until it has \
             ended",
        )
    }
}

impl fmt::Debug for CodeChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for CodeChanged {}
