//! The virtual object: its definition and its handlers.

use crate::{
    drive::{Attempt, Ended, UNWRITABLE, unwritable},
    events::Publisher,
    journal::{Begin, millis, time},
    shared::{Shared, Timeouts, Waits, configuration},
    wire::{
        Awaited, Deliver, Delivered, Delivery, ReplyInput, Resume, RunInput, RunOutput,
        ThreadState, Waiting,
    },
};
use concentric_core::{
    CancelReason, ChatRequest, Context, Environment, Error, ErrorKind, Event, Finish, Message,
    Outcome, ReplyError, Role, RunId, SideEffects, Str, ThreadId, Transcript, Turn,
    durable::ReplayEnvironment, run_state::RunState, store::Tenant,
};
use restate_sdk::{
    context::{DurableFuture, Request, RequestTarget, RunFuture},
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
// The state of the run in `WAITING`, which is written before that one.
const STATE: &str = "state";
const HISTORY: &str = "history";
const DRIVING: &str = "driving";

// The handlers of `Waits::Await` that the service calls by itself.
const RESUME: &str = "resume";
const DELIVER: &str = "deliver";

/// How long the first delivery to a wait is known to later ones, which are already on their way.
const DELIVERED: Duration = Duration::from_secs(60 * 60);

/// The longest wait for an expiry.
const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

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

    /// Resolves the awakeable of an invocation, and waits for the result.
    async fn deliver(&self, input: Deliver) -> HandlerResult<Json<Delivered>> {
        let Deliver {
            awaited,
            by,
            at,
            input,
        } = input;
        let (id, result) = self.ctx.awakeable::<Json<RunOutput>>();
        let input = serde_json::value::to_raw_value(&input)
            .map_err(|_| TerminalError::new("the replies cannot be written"))?;
        let delivery = Delivery {
            at,
            input,
            result: id.into(),
        };
        self.ctx
            .resolve_awakeable(&awaited.awakeable, Json(delivery));
        let invocation = awaited.invocation.to_string();
        let output = restate_sdk::select! {
            output = result => Some(output?.into_inner()),
            // It was cancelled or killed, or its interrupts have expired.
            _ = self.ctx.attach_invocation::<Json<RunOutput>>(invocation) => None,
        };
        let waiting = self.ctx.get::<Json<Waiting>>(WAITING).await?;
        let is_lost = output.is_none()
            && waiting.is_some_and(|Json(it)| it.is_taken && it.awaited == Some(awaited));
        Ok(Json(Delivered {
            by,
            output,
            is_lost,
        }))
    }

    fn request<I, O>(&self, handler: &str, input: I) -> Request<'a, I, O> {
        let (service, key) = (self.ctx.service_name(), self.of.key.as_str());
        self.ctx
            .request(RequestTarget::object(service, key, handler), input)
    }

    /// Awaits replies and resumes the run with them, until it has ended.
    async fn await_replies(&self, mut driven: Driven) -> HandlerResult<RunOutput> {
        let mut before: Option<(Waiting, RunState)> = None;
        let mut caller: Option<Str> = None;
        loop {
            let (mut waiting, state) = match (driven.change, before) {
                (Change::Waits(waiting, json, state), _) => {
                    self.ctx.set(STATE, Json(json));
                    (waiting, *state)
                }
                // The replies had no effect, and can be sent again.
                (Change::None, Some(before)) => before,
                (change, _) => {
                    driven.change = change;
                    let output = self.keep(driven);
                    self.answer(caller, &output);
                    return Ok(output);
                }
            };
            let (awakeable, replies) = self.ctx.awakeable::<Json<Delivery>>();
            waiting.awaited = Some(Awaited {
                awakeable: awakeable.into(),
                invocation: self.of.invocation_id.as_str().into(),
            });
            waiting.is_taken = false;
            self.ctx.set(WAITING, Json(&waiting));
            self.answer(caller.take(), &driven.output);
            let (events, finish) = (driven.events, driven.finish);
            let taken = self.wait(&events, finish, &state, replies).await;
            driven = match taken {
                Ok(Delivery { at, input, result }) => {
                    caller = Some(result);
                    let Ok(input) = serde_json::from_str(input.get()) else {
                        driven = unreadable(waiting.run.clone(), events);
                        before = Some((waiting, state));
                        continue;
                    };
                    // Before a record, so that the server has it before a step begins.
                    waiting.is_taken = true;
                    self.ctx.set(WAITING, Json(&waiting));
                    match self.begin().await? {
                        Ok((begin, environment)) => {
                            let request = resumed(state.clone(), input, at);
                            let (run, tenant) = (waiting.run.clone(), &waiting.tenant);
                            self.drive(&begin, &environment, run, tenant, request, Part::Resumed)
                                .await?
                        }
                        Err(_) => aborted(&waiting, state.clone(), CancelReason::User, events),
                    }
                }
                Err(reason) => aborted(&waiting, state.clone(), reason, events),
            };
            before = Some((waiting, state));
        }
    }

    /// Waits for replies; `Err` if the wait ends without any.
    async fn wait(
        &self,
        events: &Publisher,
        finish: Option<Box<Finish>>,
        state: &RunState,
        replies: impl DurableFuture<Output = Result<Json<Delivery>, TerminalError>>,
    ) -> Result<Delivery, CancelReason> {
        // The attempt that published the interrupts: not before the server has the state, so that a consumer can reply.
        let me = self.me;
        let by = self.ctx.run(move || async move { Ok(Json(me)) });
        match by.name("wait").await {
            Ok(Json(by)) if by == me => publish(events, finish),
            Ok(_) => {}
            Err(_) => return Err(CancelReason::User),
        }
        let interrupts = state.interrupts();
        let expiries = interrupts.iter().map(|it| it.expires_at);
        let last = expiries.reduce(|last, next| Some(last?.max(next?)));
        let replies = match last.flatten() {
            None => replies.await.map(Some),
            Some(at) => {
                let left = at.duration_since(SystemTime::now()).unwrap_or_default();
                restate_sdk::select! {
                    replies = replies => replies.map(Some),
                    ended = self.ctx.sleep(left.min(MAX_WAIT)) => ended.map(|()| None),
                    on_cancel => Err(TerminalError::new("the wait was cancelled")),
                }
            }
        };
        match replies {
            Ok(Some(Json(delivery))) => Ok(delivery),
            Ok(None) => Err(CancelReason::Other(Str::from_static("expired"))),
            Err(_) => Err(CancelReason::User),
        }
    }

    /// Passes the result of replies to their caller.
    fn answer(&self, caller: Option<Str>, output: &RunOutput) {
        if let Some(caller) = caller {
            self.ctx.resolve_awakeable(&caller, Json(output));
        }
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
        let history = self.ctx.get::<Json<Transcript>>(HISTORY).await?;
        Ok(history.map(Json::into_inner).unwrap_or_default())
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
            Ended::Failed(error) => {
                let had_effects =
                    error.effects() != SideEffects::None || context.effect_count() > 0;
                let change = match is_resumed && had_effects {
                    true => Change::Ended(None),
                    // The replies can be sent again.
                    false => Change::None,
                };
                Driven {
                    output: RunOutput::failed(run, &error),
                    change,
                    events,
                    finish: None,
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

/// A run at its end or at a wait.
struct Driven {
    output: RunOutput,
    change: Change,
    events: Publisher,
    // Not published yet.
    finish: Option<Box<Finish>>,
}

/// A change of the object's state.
enum Change {
    None,
    Waits(Waiting, Box<RawValue>, Box<RunState>),
    History(Option<Box<RawValue>>),
    /// The run that waited has ended.
    Ended(Option<Box<RawValue>>),
}

/// Publishes the end of a run. The attempt may have published nothing before, since its steps were replayed.
fn publish(events: &Publisher, finish: Option<Box<Finish>>) {
    if let Some(finish) = finish {
        events.resume();
        events.publish(Event::Finish(finish));
    }
}

/// The result of a run that has finished.
fn finished(
    run: RunId,
    tenant: &Str,
    finish: Box<Finish>,
    is_resumed: bool,
    events: Publisher,
) -> Driven {
    let change = match (&finish.outcome, finish.state.clone()) {
        (Outcome::Interrupted, Some(state)) => stored(&state).map(|json| {
            let waiting = Waiting {
                run: run.clone(),
                tenant: tenant.clone(),
                awaited: None,
                is_taken: false,
            };
            Change::Waits(waiting, json, state)
        }),
        _ => {
            let history = finish.transcript.as_ref().map(json).transpose();
            history.map(|history| match is_resumed {
                true => Change::Ended(history),
                false => Change::History(history),
            })
        }
    };
    let (output, change) = match change {
        Ok(change) => (output(run, &finish), change),
        Err(error) => {
            let change = match is_resumed {
                true => Change::Ended(None),
                false => Change::None,
            };
            (RunOutput::failed(run, &error), change)
        }
    };
    Driven {
        output,
        change,
        events,
        finish: Some(finish),
    }
}

fn output(run: RunId, finish: &Finish) -> RunOutput {
    let last = finish.transcript.as_ref().and_then(Transcript::last);
    // A run that is aborted in its first wait ends with the message of the user.
    let answer = last
        .map(Turn::as_message)
        .filter(|message| message.role == Role::Assistant);
    let text = answer.map(Message::text);
    RunOutput {
        run,
        outcome: Some(finish.outcome.clone()),
        text: text.unwrap_or_default().into(),
        interrupts: finish.interrupts().into_iter().cloned().collect(),
        usage: finish.usage,
        error: None,
    }
}

/// The end of a run that waited: the conversation is as before the round that waited.
fn aborted(waiting: &Waiting, state: RunState, reason: CancelReason, events: Publisher) -> Driven {
    let mut finish = Finish::waiting(state).with_outcome(Outcome::Aborted { reason });
    finish.state = None;
    let (run, tenant) = (waiting.run.clone(), &waiting.tenant);
    finished(run, tenant, Box::new(finish), true, events)
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

/// The part of a run whose replies, of other code, cannot be read.
fn unreadable(run: RunId, events: Publisher) -> Driven {
    let why = "the invocation, which began on other code, cannot read the replies";
    let error = Error::new(ErrorKind::InvalidRequest, why).with_code("code_changed");
    Driven {
        output: RunOutput::failed(run, &error),
        change: Change::None,
        events,
        finish: None,
    }
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

fn stored(state: &RunState) -> Result<Box<RawValue>, Error> {
    let json = state.to_json().map_err(|error| {
        Error::new(ErrorKind::TooLarge, error.to_string()).with_code(UNWRITABLE)
    })?;
    let state = RawValue::from_string(json)
        .map_err(|_| Error::new(ErrorKind::Other, "the state of the run cannot be written"))?;
    limited("the state of the run", state)
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
