//! Runs that await their replies in their invocations.

use super::{
    Invocation, Part, Publisher, STATE, WAITING,
    driven::{Change, Driven, aborted, publish, unreadable},
    resumed,
};
use crate::wire::{Awaited, Deliver, Delivered, Delivery, RunOutput, Waiting};
use concentric_core::{CancelReason, Finish, Str, run_state::RunState};
use restate_sdk::{
    context::{DurableFuture, RunFuture},
    errors::{HandlerResult, TerminalError},
    serde::Json,
};
use std::time::{Duration, SystemTime};

/// The longest wait for an expiry.
const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl Invocation<'_> {
    /// Resolves the awakeable of an invocation, and waits for the result.
    pub(super) async fn deliver(&self, input: Deliver) -> HandlerResult<Json<Delivered>> {
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

    /// Awaits replies and resumes the run with them, until it has ended.
    pub(super) async fn await_replies(&self, mut driven: Driven) -> HandlerResult<RunOutput> {
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
            if driven.was_cancelled && matches!(driven.change, Change::None) {
                // The next wait would not see the cancellation.
                driven = aborted(&waiting, state.clone(), CancelReason::User, driven.events);
            }
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
}
