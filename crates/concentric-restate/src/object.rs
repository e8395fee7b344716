//! The virtual object: its definition and its handlers.

mod awaits;
mod driven;

use self::driven::{Change, Driven, MAX_STATE, finished, publish};
use crate::{
    drive::{Attempt, Ended},
    events::Publisher,
    journal::{Begin, millis, time},
    shared::{Shared, Timeouts, Waits, configuration},
    wire::{Deliver, Delivered, ReplyInput, Resume, RunInput, RunOutput, ThreadState, Waiting},
};
use concentric_core::{
    ChatRequest, Context, Environment, Error, ErrorKind, ReplyError, RunId, SideEffects, Str,
    ThreadId, Transcript, Turn,
    durable::{RecordedError, ReplayEnvironment},
    run_state::RunState,
    store::Tenant,
};
use restate_sdk::{
    context::{Request, RequestTarget, RunFuture},
    discovery,
    endpoint::{self, ContextInternal, InputMetadata},
    errors::{HandlerError, HandlerResult, TerminalError},
    serde::{Json, PayloadMetadata},
    service::{
        Service, ServiceDefinition,
        macro_support::{ServiceBoxFuture, service_definition},
    },
};
use serde_json::value::RawValue;
use std::{
    error::Error as StdError,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

// The keys of the object's state.
const WAITING: &str = "waiting";
// The state of the run in `WAITING`, which is written before that one.
const STATE: &str = "state";
const HISTORY: &str = "history";
const DRIVING: &str = "driving";

// The handlers of `Waits::Await` that the service calls by itself.
const RESUME: &str = "resume";
const DELIVER: &str = "deliver";

/// How long the first delivery to a wait is known to later ones, which are already on their way.
const DELIVERED: Duration = Duration::from_secs(60 * 60);

/// Defines the object `name`.
pub(crate) fn define(
    name: &str,
    shared: Arc<Shared>,
    timeouts: &Timeouts,
) -> Result<ServiceDefinition, Error> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).ok();
    let shared_type = Some(discovery::HandlerType::Shared);
    let mut handlers = vec![
        handler::<Json<RunOutput>>("run", Some(input::<Json<RunInput>>()), None),
        handler::<Json<bool>>("cancel", None, shared_type),
        handler::<Json<ThreadState>>("state", None, shared_type),
    ];
    let reply = |name, ty| handler::<Json<RunOutput>>(name, Some(input::<Json<ReplyInput>>()), ty);
    let private = |handler: Option<discovery::Handler>| {
        handler.map(|handler| discovery::Handler {
            ingress_private: Some(true),
            ..handler
        })
    };
    match shared.waits {
        Waits::Return => handlers.push(reply("reply", None)),
        // The waiting invocation has the object, so that a reply must share it.
        Waits::Await => handlers.extend([
            reply("reply", shared_type).map(|handler| discovery::Handler {
                // Read again after another reply.
                enable_lazy_state: Some(true),
                ..handler
            }),
            private(handler::<Json<RunOutput>>(
                RESUME,
                Some(input::<Json<Resume>>()),
                None,
            )),
            private(handler::<Json<Delivered>>(
                DELIVER,
                Some(input::<Json<Deliver>>()),
                shared_type,
            ))
            .map(|handler| discovery::Handler {
                idempotency_retention: millis(DELIVERED),
                // Read again after the wait for the result.
                enable_lazy_state: Some(true),
                ..handler
            }),
        ]),
    }
    let handlers: Option<Vec<_>> = handlers.into_iter().collect();
    let of = discovery::ServiceName::try_from(name).ok().zip(handlers);
    let Some((of, handlers)) = of else {
        return Err(configuration(format!(
            "`{name}` is not the name of a service of Restate"
        )));
    };
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
            match (ctx.handler_name(), shared.waits) {
                ("run", _) => {
                    let (Json(input), of) = ctx.input::<Json<RunInput>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).run(input).await;
                    ctx.handle_handler_result(result);
                }
                ("reply", Waits::Return) => {
                    let (Json(input), of) = ctx.input::<Json<ReplyInput>>().await;
                    let input = Resume { input, lost: None };
                    let result = Invocation::new(&ctx, &shared, &of).resume(input).await;
                    ctx.handle_handler_result(result);
                }
                (RESUME, Waits::Await) => {
                    let (Json(input), of) = ctx.input::<Json<Resume>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).resume(input).await;
                    ctx.handle_handler_result(result);
                }
                ("reply", Waits::Await) => {
                    let (Json(input), of) = ctx.input::<Json<ReplyInput>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).reply(input).await;
                    ctx.handle_handler_result(result);
                }
                (DELIVER, Waits::Await) => {
                    let (Json(input), of) = ctx.input::<Json<Deliver>>().await;
                    let result = Invocation::new(&ctx, &shared, &of).deliver(input).await;
                    ctx.handle_handler_result(result);
                }
                ("cancel", _) => {
                    let ((), of) = ctx.input::<()>().await;
                    let result = Invocation::new(&ctx, &shared, &of).cancel().await;
                    ctx.handle_handler_result(result);
                }
                ("state", _) => {
                    let ((), of) = ctx.input::<()>().await;
                    let result = Invocation::new(&ctx, &shared, &of).state().await;
                    ctx.handle_handler_result(result);
                }
                (other, _) => {
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
        let (begin, environment) = self.begin().await??;
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
                self.clear_waiting();
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
        let driven = self.drive(
            &begin,
            &environment,
            run,
            &input.tenant,
            request,
            Part::First,
        );
        let driven = driven.await?;
        match self.shared.waits {
            Waits::Return => Ok(Json(self.keep(driven))),
            Waits::Await => self.await_replies(driven).await.map(Json),
        }
    }

    /// Resumes the run that waits in the state of the object.
    async fn resume(&self, input: Resume) -> HandlerResult<Json<RunOutput>> {
        let Resume { input, lost } = input;
        let (begin, environment) = self.begin().await??;
        let (mut waiting, state) = match self.waiting_for(&input.tenant, &environment).await? {
            Ok(found) => found,
            Err(refused) => return Ok(Json(refused)),
        };
        if let Some(lost) = lost {
            if waiting.awaited.as_ref() == Some(&lost) {
                // The next replies resume the run.
                waiting.awaited = None;
                self.ctx.set(WAITING, Json(&waiting));
            }
            let why =
                "the invocation that took the replies was killed; other replies resume the run";
            let error = Error::new(ErrorKind::Conflict, why)
                .with_code("replies_lost")
                .with_effects(SideEffects::Possible);
            return Ok(Json(RunOutput::failed(waiting.run, &error)));
        }
        waiting.awaited = None;
        let is_repeated = waiting.is_taken;
        let part = match is_repeated {
            true => Part::Repeated,
            false => Part::Resumed,
        };
        waiting.is_taken = true;
        self.ctx.set(WAITING, Json(&waiting));
        let request = resumed(state, input, begin.at);
        let (run, tenant) = (waiting.run.clone(), &waiting.tenant);
        let driven = self.drive(&begin, &environment, run, tenant, request, part);
        let driven = driven.await?;
        if let Change::None = driven.change {
            waiting.is_taken = is_repeated;
            self.ctx.set(WAITING, Json(&waiting));
        }
        Ok(Json(self.keep(driven)))
    }

    /// Passes replies to the invocation that awaits them, and waits for the result: the end of the run, or its next
    /// wait.
    async fn reply(&self, input: ReplyInput) -> HandlerResult<Json<RunOutput>> {
        let (begin, environment) = self.begin().await??;
        let me = Str::from(self.of.invocation_id.as_str());
        let mut tried = None;
        loop {
            let (waiting, state) = match self.waiting_for(&input.tenant, &environment).await? {
                Ok(found) => found,
                Err(refused) => return Ok(Json(refused)),
            };
            // Replies without effect do not reach the waiting invocation, whose journal would grow.
            if let Err(error) = check(&state, &input, begin.at) {
                return Ok(Json(RunOutput::failed(waiting.run, &error)));
            }
            let awaited = waiting.awaited.filter(|it| Some(it) != tried.as_ref());
            let Some(awaited) = awaited else {
                // No invocation awaits it: it was killed, or the run waits since before the service awaited replies.
                let input = Resume { input, lost: None };
                return Ok(self.request(RESUME, Json(input)).call().await?);
            };
            let deliver = Deliver {
                awaited: awaited.clone(),
                by: me.clone(),
                at: begin.at,
                input: input.clone(),
            };
            // Of several replies to a wait, the first one is delivered, and the others have its result.
            let delivered = self
                .request::<_, Json<Delivered>>(DELIVER, Json(deliver))
                .idempotency_key(awaited.awakeable.as_str())
                .call();
            match delivered.await?.into_inner() {
                Delivered {
                    by,
                    output: Some(output),
                    ..
                } if by == me => return Ok(Json(output)),
                // The run does not continue by itself after an operator has killed it.
                Delivered { is_lost: true, .. } => {
                    let lost = Some(awaited);
                    let input = Resume { input, lost };
                    return Ok(self.request(RESUME, Json(input)).call().await?);
                }
                _ => tried = Some(awaited),
            }
        }
    }

    fn request<I, O>(&self, handler: &str, input: I) -> Request<'a, I, O> {
        let (service, key) = (self.ctx.service_name(), self.of.key.as_str());
        self.ctx
            .request(RequestTarget::object(service, key, handler), input)
    }

    async fn cancel(&self) -> HandlerResult<Json<bool>> {
        let is_here = self.shared.live.cancel(&self.of.key);
        if is_here && self.shared.waits == Waits::Return {
            return Ok(Json(true));
        }
        // Another process drives the run: it is cancelled once its step has ended. Or no process does: it waits, or is
        // about to.
        let driving = self.ctx.get::<String>(DRIVING).await?;
        if let Some(invocation) = &driving {
            self.ctx.cancel_invocation(invocation);
        }
        Ok(Json(is_here || driving.is_some()))
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

    /// Reads or makes the first record of the invocation, or the first one after a wait; `Err` if the invocation is
    /// cancelled.
    async fn begin(
        &self,
    ) -> Result<Result<(Begin, ReplayEnvironment), TerminalError>, HandlerError> {
        let mine = Begin {
            by: self.me,
            at: millis(SystemTime::now()),
            version: self.shared.version.clone(),
            seed: seed(),
        };
        let begin = self.ctx.run(|| async { Ok(Json(mine)) }).name("begin");
        let Json(begin) = match begin.await {
            Ok(begin) => begin,
            Err(cancelled) => return Ok(Err(cancelled)),
        };
        if begin.version != self.shared.version {
            return Err(HandlerError::from(CodeChanged));
        }
        let environment = ReplayEnvironment::new(begin.seed, time(begin.at));
        Ok(Ok((begin, environment)))
    }

    async fn waiting(&self) -> Result<Option<(Waiting, RunState)>, HandlerError> {
        let Some(Json(waiting)) = self.ctx.get::<Json<Waiting>>(WAITING).await? else {
            return Ok(None);
        };
        let state = self.ctx.get::<Json<Box<RawValue>>>(STATE).await?;
        let Some(Json(state)) = state else {
            // It has ended since.
            return Ok(None);
        };
        match RunState::from_json(state.get().as_bytes(), MAX_STATE) {
            Ok(state) => Ok(Some((waiting, state))),
            Err(error) => {
                tracing::error!(%error, "the state of a waiting run cannot be read");
                let why = "the state of the waiting run cannot be read";
                Err(TerminalError::new(why).into())
            }
        }
    }

    /// The run that waits, if `tenant` may reply to it; otherwise the result for the caller.
    async fn waiting_for(
        &self,
        tenant: &Str,
        environment: &ReplayEnvironment,
    ) -> Result<Result<(Waiting, RunState), RunOutput>, HandlerError> {
        let Some((waiting, state)) = self.waiting().await? else {
            let run = RunId::new(environment.environment().ids().next("run_"));
            let why = "no run of the conversation waits for replies";
            let error = Error::new(ErrorKind::Conflict, why).with_code("run_ended");
            return Ok(Err(RunOutput::failed(run, &error)));
        };
        if waiting.tenant != *tenant {
            let why = "the waiting run has another owner";
            let error = Error::new(ErrorKind::NotFound, why).with_code("run_not_found");
            return Ok(Err(RunOutput::failed(waiting.run, &error)));
        }
        Ok(Ok((waiting, state)))
    }

    async fn history(&self) -> Result<Transcript, HandlerError> {
        let Some(Json(history)) = self.ctx.get::<Json<Box<RawValue>>>(HISTORY).await? else {
            return Ok(Transcript::default());
        };
        serde_json::from_str(history.get()).map_err(|error| {
            // Another attempt cannot read it either.
            tracing::error!(%error, "the history of a conversation cannot be read");
            TerminalError::new("the history of the conversation cannot be read").into()
        })
    }

    /// Drives a part of a run, to its end or its next wait.
    async fn drive(
        &self,
        begin: &Begin,
        environment: &ReplayEnvironment,
        run: RunId,
        tenant: &Str,
        request: ChatRequest,
        part: Part,
    ) -> HandlerResult<Driven> {
        let is_resumed = part != Part::First;
        let thread = self.of.key.as_str();
        let mut context = Context::builder()
            .thread_id(ThreadId::new(thread))
            .run_id(run.clone())
            .environment(environment.environment())
            .build();
        context.extensions_mut().insert(Tenant(tenant.clone()));
        let request = request.with_context(context.clone());
        self.ctx.set(DRIVING, self.of.invocation_id.clone());
        let events = self.shared.events.drive(thread, begin.seed);
        if begin.by == self.me {
            events.begin();
        }
        let live = self.shared.live.enter(thread);
        let attempt = Attempt {
            ctx: self.ctx,
            shared: self.shared,
            events: &events,
            live: &live.run,
            me: self.me,
            begin,
            is_repeated: part == Part::Repeated,
            environment,
        };
        let ended = attempt.drive(self.shared.agent.clone(), request).await?;
        Ok(match ended {
            Ended::Finished(finish) => finished(run, tenant, finish, is_resumed, events),
            Ended::Failed {
                error,
                was_cancelled,
            } => {
                let had_effects =
                    error.effects() != SideEffects::None || context.effect_count() > 0;
                let change = match is_resumed && had_effects {
                    true => Change::Ended(None),
                    // The replies can be sent again.
                    false => Change::None,
                };
                tracing::warn!(parent: None, %error, "a run failed");
                // The journal has no texts of others.
                let error = RecordedError::new(&error).to_error();
                Driven {
                    output: RunOutput::failed(run, &error),
                    change,
                    events,
                    finish: None,
                    was_cancelled,
                }
            }
        })
    }

    /// Keeps what the next invocations need.
    fn keep(&self, driven: Driven) -> RunOutput {
        self.ctx.clear(DRIVING);
        self.apply(driven.change);
        publish(&driven.events, driven.finish);
        driven.output
    }

    fn apply(&self, change: Change) {
        let set = |history: Option<Box<RawValue>>| {
            if let Some(history) = history {
                self.ctx.set(HISTORY, Json(history));
            }
        };
        match change {
            Change::None => {}
            Change::Waits(waiting, json, _) => {
                self.ctx.set(STATE, Json(json));
                self.ctx.set(WAITING, Json(waiting));
            }
            Change::History(history) => set(history),
            Change::Ended(history) => {
                self.clear_waiting();
                set(history);
            }
        }
    }

    fn clear_waiting(&self) {
        self.ctx.clear(WAITING);
        self.ctx.clear(STATE);
    }
}

/// The part of a run that is driven.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// From the request to the first wait.
    First,
    /// From the state that the object has.
    Resumed,
    /// From that state, after a part that did not end: its first step may have been executed.
    Repeated,
}

/// Checks replies, which were accepted `at` a time, without applying them.
fn check(state: &RunState, input: &ReplyInput, at: u64) -> Result<(), Error> {
    let missing = match input.replies.is_empty() && input.messages.is_empty() {
        true => state.interrupts().first().map(|it| it.id.clone()),
        false => None,
    };
    let checked = match missing {
        Some(id) => Err(ReplyError::Missing(id)),
        None => state.check_replies(&input.replies, time(at)),
    };
    checked.map_err(|error| {
        Error::new(ErrorKind::InvalidRequest, error.to_string()).with_code(error.code())
    })
}

/// The request to resume a run with replies that were accepted `at` a time.
fn resumed(state: RunState, input: ReplyInput, at: u64) -> ChatRequest {
    let mut request = ChatRequest::resume(state, input.replies);
    if let Some(resume) = request.resume.take() {
        let resume = resume.with_messages(input.messages).accepted_at(time(at));
        request.set_resume(resume);
    }
    request
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
