//! The state of a run that is being driven, without the work in progress.

use super::{
    Driver, DriverParts,
    checkpoint::Checkpointing,
    claim::Claim,
    guard::{Foreign, at, attempt},
    resume::resume,
    stop::Stops,
    trace::model_called,
    work::Work,
};
use crate::{
    context::Context, request::ChatRequest, resume::Resume, step_gate::StepGates,
    tool_call::ToolRound,
};
use concentric_proto::{
    ChatOptions, Error, ErrorKind, Event, MessageId, Phase, ResponseHead, RoundCall, Str, System,
    ToolChoice, ToolNameTaken, ToolSpecs, Usage,
    machine::{Input, Machine, ModelResume, ModelStart, RunLimits},
};
use std::{
    collections::HashSet,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{self, Poll},
};
use tower::util::Oneshot;
use tower_service::Service;

/// A run: its machine, its services, and what the driver knows about it.
pub(super) struct Run<M, R> {
    pub(super) machine: Machine,
    model: M,
    rounds: R,
    pub(super) context: Context,
    // These are part of the request of each model call.
    pub(super) system: System,
    pub(super) tools: ToolSpecs,
    pub(super) options: Arc<ChatOptions>,
    client_tools: Arc<[Str]>,
    // The context of the latest model call, until its round.
    pub(super) step: Option<Context>,
    // Cancellation and deadline; created when the run first waits.
    pub(super) stops: Option<Pin<Box<Stops>>>,
    pub(super) claim: Option<Claim>,
    pub(super) checkpoint: Option<Box<Checkpointing>>,
    // Calls were taken from the machine and the round service was not called yet, so that a stop
    // takes the round back.
    pub(super) takes_back: bool,
    // There was a round since the options were set, so that they no longer force a tool call.
    pub(super) is_choice_spent: bool,
    // The number of effects of the next round.
    uncounted: u32,
    // How many of them its service counts; kept for later rounds.
    counted: Option<Arc<AtomicU64>>,
    // The gates of this run and of its agent.
    pub(super) gates: Option<StepGates>,
    // The tokens of model calls that their models have not recorded; `None` if these are all tokens of
    // the machine's attempt, which most runs need not count again.
    pub(super) unrecorded: Option<Box<Usage>>,
    polls: u32,
}

impl<M, B, R, O> Driver<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    /// Creates a driver that begins a run, or continues the `resumed` one.
    // One expression: a driver has 1,000 bytes, and each variable that holds it would be copied.
    pub(super) fn begin(
        parts: DriverParts<M, R>,
        mut request: ChatRequest,
        client_tools: Arc<[Str]>,
        resumed: Option<Box<Machine>>,
        claim: Option<Claim>,
    ) -> Pin<Box<Self>> {
        let unrecorded = resumed.as_ref().map(|_| Box::default());
        // The choice was for the answers before the suspension.
        let is_choice_spent = resumed
            .as_ref()
            .is_some_and(|it| it.last_reason().is_some());
        if is_choice_spent {
            spend_choice(&mut request.options);
        }
        Box::pin(Self {
            work: Work::Idle,
            run: Run {
                machine: match resumed {
                    None => Machine::new(request.transcript, parts.rules),
                    Some(machine) => *machine,
                },
                model: parts.model,
                rounds: parts.rounds,
                context: request.context,
                system: request.system,
                tools: request.tools,
                options: request.options,
                client_tools,
                step: None,
                stops: None,
                claim,
                checkpoint: request.checkpoint.map(Checkpointing::boxed),
                takes_back: false,
                is_choice_spent,
                uncounted: 0,
                counted: None,
                gates: Some(parts.gates).filter(|gates| !gates.is_empty()),
                unrecorded,
                polls: 0,
            },
        })
    }
}

impl<M, R> Run<M, R> {
    /// Creates the call of the model for `step`.
    ///
    /// # Errors
    ///
    /// The model panicked when it was cloned.
    pub(super) fn model_call(
        &mut self,
        step: u32,
        resume: Option<Box<ModelResume>>,
    ) -> Result<Oneshot<M, ChatRequest>, Error>
    where
        M: Service<ChatRequest> + Clone,
    {
        let message_id = MessageId::new(self.context.new_id("msg_"));
        let model = attempt(Foreign::Model, || self.model.clone());
        let model = model.map_err(|error| at(error, Phase::Model))?;
        let request = ChatRequest {
            transcript: self.machine.transcript().clone(),
            system: self.system.clone(),
            tools: self.tools.clone(),
            options: Arc::clone(&self.options),
            resume: resume.map(|resume| Resume::from(*resume)),
            checkpoint: self.inner_checkpoint(),
            context: self.context.at_step(step, message_id),
            overrides: None,
        };
        model_called(&request);
        self.step = Some(request.context.clone());
        self.context.forget_expectations();
        Ok(Oneshot::new(model, request))
    }

    /// Emits the start of the step whose model call was created.
    pub(super) fn step_started(&mut self) {
        if let Some(id) = self.message_id() {
            self.machine.step_started(id);
        }
        self.mark_step();
    }

    /// The id of the message that the model was called for.
    fn message_id(&self) -> Option<MessageId> {
        self.step.as_ref()?.message_id().cloned()
    }

    /// Passes the head of the model's answer to the machine.
    pub(super) fn model_started(&mut self, head: ResponseHead) {
        if let Some(message_id) = self.message_id() {
            let (tools, client_tools) = (self.tools.clone(), self.client_tools.clone());
            let start = ModelStart::with_tools(message_id, head, tools, client_tools);
            self.machine.model_started(start);
        }
    }

    /// Passes an item of the model's answer to the machine, and returns the event to yield, if any.
    pub(super) fn take_in(&mut self, item: Option<Result<Event, Error>>) -> Option<Event> {
        if let Some(Ok(Event::Finish(finish))) = &item {
            self.count_unrecorded(finish);
        }
        match item {
            // Events that were emitted before the model's finish precede the end of the step.
            Some(Ok(event @ Event::Finish(_))) if self.context.outbox().is_filled() => {
                self.machine.input(Input::ModelEvent(event));
            }
            Some(Ok(event)) => return self.machine.model_event(event),
            Some(Err(error)) => {
                let error = at(error, Phase::Model);
                self.machine.input(Input::ModelFailed(error));
            }
            None => self.machine.input(Input::ModelEnded),
        }
        None
    }

    /// Creates the round with the `calls` of `step`.
    pub(super) fn round(
        &mut self,
        step: u32,
        message_id: Option<MessageId>,
        mut calls: Vec<RoundCall>,
    ) -> ToolRound {
        for call in &mut calls {
            call.spec = self.tools.get(&call.call.name).cloned();
        }
        let context = match self.step.take() {
            Some(call) if call.message_id() == message_id.as_ref() => {
                call.into_round(&self.context)
            }
            _ => self.context.at_round(step, message_id),
        };
        ToolRound::new(calls, context).after(self.machine.transcript().clone())
    }

    /// Creates the call of the round service. If the service panics when it is cloned, the round is
    /// refused and this returns `None`.
    pub(super) fn round_call(&mut self, mut round: ToolRound) -> Option<Oneshot<R, ToolRound>>
    where
        R: Service<ToolRound> + Clone,
    {
        let rounds = match attempt(Foreign::Tools, || self.rounds.clone()) {
            Ok(rounds) => rounds,
            Err(error) => {
                let error = at(error, Phase::Round);
                self.machine.input(Input::RoundRefused(error));
                return None;
            }
        };
        self.takes_back = false;
        self.spend_choice();
        self.uncounted = round.effects();
        if self.uncounted > 0 {
            self.counted = Some(round.share_count(self.counted.take()));
        }
        Some(Oneshot::new(rounds, round))
    }

    /// Removes a choice that forces a call. With it in every step, the run would end at its step limit only.
    pub(super) fn spend_choice(&mut self) {
        self.is_choice_spent = true;
        spend_choice(&mut self.options);
    }

    /// Counts the effects of a round whose call was polled, without those that its service counts.
    pub(super) fn count_effects(&mut self) {
        let effects = std::mem::take(&mut self.uncounted);
        if effects > 0
            && let Some(own) = &self.counted
        {
            let counted = own.load(Ordering::Acquire);
            let effects = u64::from(effects).saturating_sub(counted);
            self.context.count_effects(effects);
        }
    }

    /// Whether to check for more than the model's next event: once in 64 events, and when an event
    /// was emitted or the run was cancelled through this context.
    #[inline]
    pub(super) fn is_called(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(64) || self.context.outbox().is_filled()
    }

    /// Takes an emitted event, or registers `cx` to be woken when there is one.
    ///
    /// A loop inside another loop's model call never waits here: the outer loop takes the events,
    /// so such a wait would end only when the outer loop is polled.
    pub(super) fn poll_emitted(&self, cx: &task::Context<'_>) -> Poll<Event> {
        match self.claim {
            Some(_) => self.context.outbox().poll_pop(cx.waker()),
            None => Poll::Pending,
        }
    }

    /// Counts an event that the body yields.
    #[inline]
    pub(super) fn count_event(&self) {
        if self.claim.is_some() {
            self.context.count_event();
        }
    }
}

fn spend_choice(options: &mut Arc<ChatOptions>) {
    let choice = &options.tool_choice;
    if matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) {
        Arc::make_mut(options).tool_choice = None;
    }
}

/// Restores the machine of the run that `request` refers to, if any, and applies its edits to the
/// request.
pub(super) fn resumed(
    request: &mut ChatRequest,
    rules: &Arc<RunLimits>,
    overrides: &[Str],
) -> Result<Option<Box<Machine>>, Error> {
    let Some(resumed) = request.resume.take() else {
        return Ok(None);
    };
    let missing = resumed.missing_overrides(overrides);
    if !missing.is_empty() {
        let why = format!(
            "the run was started with the overrides `{}`, which the request that resumes it lacks",
            missing.join("`, `")
        );
        return Err(Error::new(ErrorKind::Configuration, why)
            .with_code("overrides")
            .with_phase(Phase::Run));
    }
    let machine = resume(request, &resumed, Arc::clone(rules))?;
    if let Some(edits) = machine.edits() {
        edits.apply(
            &mut request.system,
            &mut request.tools,
            &mut request.options,
        );
    }
    Ok(Some(Box::new(machine)))
}

/// Adds the agent's tools to those of the client, and returns the names of the client's tools.
pub(super) fn offer(request: &mut ChatRequest, specs: ToolSpecs) -> Result<Arc<[Str]>, Error> {
    if request.tools.is_empty() {
        request.tools = specs;
        return Ok(Arc::default());
    }
    let names: Arc<[Str]> = request.tools.iter().map(|t| t.name.clone()).collect();
    // Within another loop the request's tools belong to that loop, so the host must fix a
    // collision.
    if request.context.phase() == Phase::Run {
        let of_request: HashSet<&str> = names.iter().map(Str::as_str).collect();
        let mut own = specs.iter().map(|spec| &spec.name);
        if let Some(name) = own.find(|name| of_request.contains(name.as_str())) {
            let taken = ToolNameTaken::new(name.clone());
            return Err(Error::new(ErrorKind::InvalidRequest, taken.to_string())
                .with_source(taken)
                .with_phase(Phase::Run));
        }
    }
    for spec in &specs {
        request.tools.push(spec.clone());
    }
    request
        .tools
        .check()
        .map_err(|error| error.with_phase(Phase::Run))?;
    Ok(names)
}
