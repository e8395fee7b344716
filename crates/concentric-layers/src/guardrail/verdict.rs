use super::{Assessment, Subject, layer::Guard};
use crate::wait::Stop;
use concentric_core::{BoxError, CustomEvent, Error, ErrorKind, Str};
use serde_json::json;
use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};
use tower::ServiceExt;

/// The [code](Error::code) of an error for content that a classifier blocked.
pub const BLOCKED: &str = "guardrail_blocked";

/// The [code](Error::code) of an error for content that could not be judged.
pub const FAILED: &str = "guardrail_failed";

/// The source of the error for blocked content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The name of the guardrail.
    pub name: Str,
    /// The categories that the classifier reported.
    pub categories: Vec<Str>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guardrail `{}` reported", self.name)?;
        for (index, category) in self.categories.iter().enumerate() {
            let separator = if index == 0 { " " } else { ", " };
            write!(f, "{separator}{category}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Blocked {}

/// Why a subject is not released.
pub(super) enum Refused {
    /// The classifier blocked it, or it could not be judged.
    Blocked(Error),
    /// The run ended before the verdict.
    Ended(Error),
}

/// The verdict on a subject, which is being found.
// Boxed, since the classifier's future has no name.
pub(super) type Verdict = Pin<Box<dyn Future<Output = Result<(), Refused>> + Send>>;

impl Guard {
    /// Judges `subject`.
    pub(super) fn judge(self: &Arc<Self>, subject: Subject) -> Verdict {
        let guard = Arc::clone(self);
        Box::pin(async move {
            let context = subject.context.clone();
            let is_answer = subject.is_answer;
            let report = |categories: &[Str], is_blocked: bool| {
                let value = json!({
                    "name": guard.name,
                    "direction": if is_answer { "output" } else { "input" },
                    "categories": categories,
                    "blocked": is_blocked,
                });
                // An event that is lost changes nothing.
                let _ = context.emit(CustomEvent::new("concentric.guardrail", value));
            };
            match guard.assess(subject).await? {
                Ok(Assessment::Pass) => Ok(()),
                Ok(Assessment::Flag(categories)) => {
                    report(&categories, false);
                    Ok(())
                }
                Ok(Assessment::Block(categories)) => {
                    report(&categories, true);
                    let name = guard.name.clone();
                    Err(Refused::Blocked(
                        Error::new(ErrorKind::ContentFilter, guard.message(is_answer))
                            .with_code(BLOCKED)
                            .with_source(Blocked { name, categories }),
                    ))
                }
                Err(error) => {
                    // Not the message, which may quote the text.
                    let failed = Error::of(&*error);
                    let (kind, code) = (failed.kind().as_str(), failed.code());
                    tracing::warn!(
                        target: "concentric::guardrail",
                        name = guard.name.as_str(), open = guard.is_open, kind, code,
                        "a classifier failed",
                    );
                    report(&[Str::from(FAILED)], !guard.is_open);
                    if guard.is_open {
                        return Ok(());
                    }
                    let message =
                        format!("the guardrail `{}` could not judge the text", guard.name);
                    Err(Refused::Blocked(
                        Error::new(ErrorKind::ContentFilter, message)
                            .with_code(FAILED)
                            .with_source(error),
                    ))
                }
            }
        })
    }

    /// Calls the classifier, until it answers, fails, panics or takes too long.
    async fn assess(&self, subject: Subject) -> Result<Result<Assessment, BoxError>, Refused> {
        let mut stop = Stop::new(&subject.context);
        let mut late = subject.context.environment().clock().sleep(self.timeout);
        let call = async { self.classifier.clone().oneshot(subject).await };
        let mut call = pin!(call);
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)));
            match polled {
                Ok(Poll::Ready(assessment)) => return Poll::Ready(Ok(assessment)),
                Ok(Poll::Pending) => {}
                Err(_) => return Poll::Ready(Ok(Err("the classifier panicked".into()))),
            }
            if let Poll::Ready(error) = stop.poll("a guardrail", cx) {
                return Poll::Ready(Err(Refused::Ended(error)));
            }
            let late = late.as_mut().poll(cx);
            late.map(|()| {
                let what = "the classifier took too long";
                Ok(Err(Error::new(ErrorKind::Timeout, what).into()))
            })
        })
        .await
    }

    fn message(&self, is_answer: bool) -> String {
        let what = if is_answer { "answer" } else { "input" };
        format!("the guardrail `{}` blocked the {what}", self.name)
    }
}
