use crate::budget::{Amounts, Budget, Lease, ToolBudgetLayer, millis};
use concentric_core::{self as core, BoxError, Error, ToolCall, ToolOutcome};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};
use tower_service::Service;

pin_project! {
    /// Response future for [`ToolBudget`](super::ToolBudget).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ToolCall>,
    {
        #[pin]
        stage: Stage<S>,
        spending: Option<Spending>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S>
    where
        S: Service<ToolCall>,
    {
        Waiting { inner: S, call: Option<ToolCall> },
        Calling { #[pin] call: S::Future },
        Done,
    }
}

impl<S> ResponseFuture<S>
where
    S: Service<ToolCall>,
{
    pub(super) const fn new(inner: S, call: ToolCall) -> Self {
        Self {
            stage: Stage::Waiting {
                inner,
                call: Some(call),
            },
            spending: None,
        }
    }
}

impl<S> Future for ResponseFuture<S>
where
    S: Service<ToolCall, Response = ToolOutcome>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ToolOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let result = loop {
            match this.stage.as_mut().project() {
                StageProj::Waiting { inner, call } => {
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        break Err(error.into().into());
                    }
                    let mut call = call.take().expect("the call is taken once");
                    match Spending::begin(&mut call) {
                        Ok(Begun::Runs(spending)) => *this.spending = spending,
                        Ok(Begun::Denied(outcome)) => break Ok(outcome),
                        Err(error) => break Err(error),
                    }
                    let call = inner.call(call);
                    this.stage.set(Stage::Calling { call });
                }
                StageProj::Calling { call } => {
                    break ready!(call.poll(cx)).map_err(|error| error.into().into());
                }
                StageProj::Done => return Poll::Pending,
            }
        };
        this.stage.set(Stage::Done);
        if let Some(mut spending) = this.spending.take()
            && let Err(error) = &result
        {
            spending.failed(error);
        }
        Poll::Ready(result)
    }
}

/// The spending of a tool call; settled on drop.
struct Spending {
    // `None` if there is nothing to settle.
    lease: Option<Lease>,
    context: core::Context,
    since: SystemTime,
}

enum Begun {
    /// The call proceeds. `None` if it is not charged because it is already settled or refused.
    Runs(Option<Spending>),
    Denied(ToolOutcome),
}

impl Spending {
    fn begin(call: &mut ToolCall) -> Result<Begun, Error> {
        if call.settled().is_some() || call.refusal().is_some() {
            return Ok(Begun::Runs(None));
        }
        call.context.enter::<ToolBudgetLayer>()?;
        let context = &call.context;
        let budget = context.require::<Budget>()?;
        budget.check_kept()?;
        Ok(match budget.reserve(ONE.time_ms(1)) {
            Ok(lease) => Begun::Runs(Some(Self {
                lease: Some(lease),
                since: context.now(),
                context: context.clone(),
            })),
            Err(over) => Begun::Denied(ToolOutcome::denied(format!(
                "The call was not run: {over}."
            ))),
        })
    }

    /// Records a failure: a suspended call is not charged, because it is made again.
    fn failed(&mut self, error: &Error) {
        if error.suspension().is_some() {
            self.lease = None;
        }
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.settle(ONE.time_ms(millis(&self.context, self.since)));
        }
    }
}

const ONE: Amounts = Amounts::new().tool_calls(1);

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ToolCall>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
