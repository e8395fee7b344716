//! Replies to the questions of a run, which resume it.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use concentric_core::{
    ChatRequest, Context, Error, Interrupt, InterruptId, Reply, ReplyError, ThreadId,
    context::Sleep,
    interrupt::TOOL_CALL,
    panic::catch,
    store::{RunRecord, RunStatus, RunStore, StoreError},
};
use futures_core::Stream;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::oneshot};
use tower::ServiceExt;

use super::{
    approvals::{SCOPES, digest, purpose},
    config::Config,
    form::Form,
    listing::{RunName, failed, log},
    operator::Operator,
    run::unknown,
};
use crate::{
    describe::{describe, refusal, source},
    refused::Refused,
    shutdown::{Guard, enter},
};

/// How long the response waits until the agent has accepted a reply.
const HELD: Duration = Duration::from_secs(5);

/// The decision about one interrupt, as a form has it.
#[derive(Default)]
struct Answer {
    interrupt: String,
    digest: String,
    decision: String,
    reason: String,
    arguments: String,
    result: String,
    remember: String,
}

/// Reads the decisions of a form, which begins each with the interrupt.
fn answers(form: &Form) -> Option<Vec<Answer>> {
    let mut answers: Vec<Answer> = Vec::new();
    for (name, value) in form.iter() {
        if name == "interrupt" {
            let interrupt = crate::percent::decode(value)?.into_owned();
            answers.push(Answer {
                interrupt,
                ..Answer::default()
            });
            continue;
        }
        let Some(answer) = answers.last_mut() else {
            continue;
        };
        let field = match name {
            "digest" => &mut answer.digest,
            "decision" => &mut answer.decision,
            "reason" => &mut answer.reason,
            "arguments" => &mut answer.arguments,
            "result" => &mut answer.result,
            "remember" => &mut answer.remember,
            _ => continue,
        };
        value.clone_into(field);
    }
    (!answers.is_empty()).then_some(answers)
}

/// Resumes the run that a form replies to.
pub(super) async fn reply(
    config: &Config,
    operator: &Operator,
    name: &RunName,
    form: &Form,
) -> Result<(), Refused> {
    let answers = answers(form).ok_or_else(|| Refused::field("interrupt", "missing"))?;
    let now = config.environment.clock().now();
    let asked = answers.iter();
    let asked: Vec<(&str, &str)> = asked
        .map(|answer| (answer.interrupt.as_str(), answer.digest.as_str()))
        .collect();
    let token = form.get("token");
    let key = form.id("key").unwrap_or_default();
    let purpose = purpose(name, &key, &asked);
    config.forms.check(token, operator, &purpose, now)?;
    if !operator.may_decide() {
        let why = "You may not decide.";
        return Err(Refused::new(StatusCode::FORBIDDEN, "forbidden", why, None));
    }
    if !operator.remember && answers.iter().any(|answer| !answer.remember.is_empty()) {
        let why = "You may not decide about further calls.";
        return Err(Refused::new(StatusCode::FORBIDDEN, "forbidden", why, None));
    }
    let (Some(store), Some(agent)) = (&config.runs, &config.agent) else {
        return Err(Refused::not_found(
            "not_found",
            "This console receives no replies.",
        ));
    };
    let record = read(&**store, name, &key, &answers).await?;
    let mut replies = Vec::new();
    for answer in &answers {
        let open = record.state.interrupts();
        let open = open
            .into_iter()
            .find(|it| it.id.as_str() == answer.interrupt);
        let open = open.ok_or_else(answered)?;
        if digest(open) != answer.digest {
            return Err(changed());
        }
        let mut reply = answer.reply(open)?;
        reply.by = Some(operator.name.clone());
        open.check(&reply, now).map_err(|error| invalid(&error))?;
        replies.push(reply);
    }
    for answer in &answers {
        tracing::info!(
            target: "concentric::console",
            operator = operator.name.as_str(), tenant = name.tenant.as_str(), thread_id = name.thread.as_str(),
            run_id = name.run.as_str(), interrupt_id = answer.interrupt.as_str(),
            decision = answer.decision.as_str(), remember = answer.remember.as_str(), "an operator replied"
        );
    }
    let mut context = Context::builder()
        .environment(config.environment.clone())
        .run_id(record.client_id.clone())
        .thread_id(record.key.thread.clone());
    // The store does not have the name of the agent.
    if let Some(agent) = log(config, name).and_then(|log| log.about().agent.clone()) {
        context = context.agent(agent);
    }
    let mut context = context.build();
    let extensions = context.extensions_mut();
    extensions.insert(record.key.tenant.clone());
    // A run that asks under the same id meanwhile is not resumed.
    extensions.insert(record.key);
    let request = ChatRequest::replying(replies).with_context(context);
    let guard = enter(config.shutdown.as_ref())?;
    let (sender, accepted) = oneshot::channel();
    let Ok(runtime) = Handle::try_current() else {
        tracing::error!("a console needs a tokio runtime to resume runs");
        return Err(Refused::internal());
    };
    runtime.spawn(drive(agent.clone(), request, sender, guard));
    match accepted.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(refused(&error)),
        Err(_) => Err(Refused::internal()),
    }
}

/// The run that the agent resumes, if it is the one that the form shows, whose stored id is `key`.
///
/// Ids of interrupts may repeat within a conversation, and the agent finds the newest run that raised them.
async fn read(
    store: &dyn RunStore,
    name: &RunName,
    key: &str,
    answers: &[Answer],
) -> Result<RunRecord, Refused> {
    let asked = answers.iter().map(|it| InterruptId::new(&*it.interrupt));
    let (asked, thread) = (asked.collect(), ThreadId::new(&*name.thread));
    match store.find_by_interrupt(name.tenant(), thread, asked).await {
        Ok(record) if record.key.run.as_str() != key => Err(changed()),
        Ok(record) if record.status == RunStatus::Suspended => Ok(record),
        Ok(_) => Err(answered()),
        Err(StoreError::NotFound) => Err(unknown()),
        Err(error) => Err(failed(&error)),
    }
}

impl Answer {
    fn reply(&self, open: &Interrupt) -> Result<Reply, Refused> {
        let id = InterruptId::new(&*self.interrupt);
        let is_call = open.reason == TOOL_CALL;
        let reply = match self.decision.as_str() {
            "approve" => Reply::approve(id),
            "deny" if self.reason.trim().is_empty() => {
                Reply::resolve(id, json!({"approved": false}))
            }
            "deny" => Reply::deny(id, self.reason.trim()),
            "edit" if is_call => match serde_json::from_str(&self.arguments) {
                Ok(arguments @ Value::Object(_)) => Reply::approve_edited(id, arguments),
                Ok(_) => return Err(Refused::field("arguments", "expected a JSON object")),
                Err(error) => {
                    return Err(Refused::field("arguments", &format!("not JSON: {error}")));
                }
            },
            "answer" => {
                let text = || Value::from(self.result.as_str());
                let result = serde_json::from_str(&self.result);
                Reply::answer(id, result.unwrap_or_else(|_| text()))
            }
            "cancel" => Reply::cancel(id),
            _ => return Err(Refused::field("decision", "select one")),
        };
        if self.remember.is_empty() {
            return Ok(reply);
        }
        let scope = SCOPES.iter().find(|(value, ..)| *value == self.remember);
        let Some((_, calls, lifetime, _)) = scope else {
            return Err(Refused::field("remember", "select one"));
        };
        Ok(reply.remembered(*calls, *lifetime))
    }
}

/// Drives a resumed run to its end. It does not depend on the operator's connection.
async fn drive(
    agent: concentric_core::BoxModel,
    request: ChatRequest,
    sender: oneshot::Sender<Result<(), Error>>,
    mut guard: Option<Guard>,
) {
    let context = request.context.clone();
    let mut call = pin!(agent.oneshot(request));
    let mut limit: Sleep = context.environment().clock().sleep(HELD);
    let mut sender = Some(sender);
    let mut accept = |result| {
        if let Some(sender) = sender.take() {
            // The operator may have left.
            let _ = sender.send(result);
        }
    };
    let mut is_accepted = false;
    let response = poll_fn(|cx| {
        if let Some(guard) = &mut guard
            && guard.poll_over(&context, cx).is_ready()
        {
            return Poll::Ready(None);
        }
        match catch(|| call.as_mut().poll(cx)) {
            Ok(Poll::Ready(response)) => Poll::Ready(Some(response)),
            Err(panic) => Poll::Ready(Some(Err(panic.error()))),
            Ok(Poll::Pending) => {
                if !is_accepted
                    && (context.poll_head(cx).is_ready() || limit.as_mut().poll(cx).is_ready())
                {
                    is_accepted = true;
                    accept(Ok(()));
                }
                Poll::Pending
            }
        }
    })
    .await;
    let mut body = match response {
        Some(Ok(response)) => {
            accept(Ok(()));
            response.body
        }
        Some(Err(error)) => {
            tracing::info!(target: "concentric::console", run_id = %context.run_id(), %error, "a reply was not accepted, or its run failed");
            return accept(Err(error));
        }
        None => return,
    };
    poll_fn(|cx| {
        if let Some(guard) = &mut guard
            && guard.poll_over(&context, cx).is_ready()
        {
            return Poll::Ready(());
        }
        // Some items at a time, so that other tasks have their turn.
        for _ in 0..64 {
            match catch(|| Pin::new(&mut body).poll_next(cx)) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Some(_))) => {}
                Ok(Poll::Ready(None)) => return Poll::Ready(()),
                Err(panic) => {
                    tracing::error!(
                        panic = panic.text(),
                        "a run that a console resumed panicked"
                    );
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn answered() -> Refused {
    let why = "This question has been answered already, by another operator or by the user.";
    Refused::conflict("already_answered", why)
}

fn changed() -> Refused {
    let why = "The call has changed since this page was opened, or a newer run has asked under the same id. Open the page again.";
    Refused::conflict("call_changed", why)
}

/// The response to a reply that the interrupt does not accept.
fn invalid(error: &ReplyError) -> Refused {
    Refused::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        error.code(),
        &format!("{error}."),
        None,
    )
}

/// The response to a reply that did not resume the run.
fn refused(error: &Error) -> Refused {
    if let Some(error) = source::<ReplyError>(error) {
        return match error {
            ReplyError::Unknown(_) => answered(),
            error => invalid(error),
        };
    }
    match refusal(error) {
        Some("run_not_found") => unknown(),
        Some("already_resumed" | "run_ended" | "run_taken" | "taken" | "conflict") => answered(),
        Some(code) => Refused::conflict(code, &describe(error)),
        None => {
            let status = StatusCode::BAD_GATEWAY;
            Refused::new(status, error.kind().as_str(), &describe(error), None)
        }
    }
}
