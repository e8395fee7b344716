use super::{ModelBudgetBody, spending::Spending};
use crate::budget::{layer::Prices, shared::Reserved};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_service::Service;

pin_project! {
    /// Response future for [`ModelBudget`](super::ModelBudget).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        stage: Stage<S>,
        // Moved to the body.
        spending: Option<Spending>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S>
    where
        S: Service<ChatRequest>,
    {
        Waiting { inner: S, call: Option<(ChatRequest, Prices)>, reserving: Option<Reserving> },
        Calling { #[pin] call: S::Future },
        Failed { error: Option<Error> },
        Done,
    }
}

// Boxed, since the future has no name; without shared budgets there is none.
type Reserving = Pin<Box<dyn Future<Output = Result<Option<Reserved>, Error>> + Send>>;

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) const fn new(inner: S, request: ChatRequest, prices: Prices) -> Self {
        Self {
            stage: Stage::Waiting {
                inner,
                call: Some((request, prices)),
                reserving: None,
            },
            spending: None,
        }
    }

    pub(super) const fn failed(error: Error) -> Self {
        Self {
            stage: Stage::Failed { error: Some(error) },
            spending: None,
        }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<ModelBudgetBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let result = loop {
            match this.stage.as_mut().project() {
                StageProj::Waiting {
                    call,
                    reserving: reserving @ Some(_),
                    inner,
                } => {
                    let Some(reserved) = reserving.as_mut() else {
                        continue;
                    };
                    let reserved = ready!(reserved.as_mut().poll(cx));
                    *reserving = None;
                    match reserved {
                        Ok(reserved) => {
                            if let Some(spending) = this.spending {
                                spending.sent(reserved);
                            }
                        }
                        Err(error) => {
                            // Nothing was sent.
                            *this.spending = None;
                            break Err(error);
                        }
                    }
                    let (request, _) = call.take().expect("the call is taken once");
                    let call = inner.call(request);
                    this.stage.set(Stage::Calling { call });
                }
                StageProj::Waiting {
                    inner,
                    call,
                    reserving,
                } => {
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        break Err(error.into().into());
                    }
                    let (request, prices) = call.take().expect("the call is taken once");
                    let shared = prices
                        .shared
                        .source
                        .is_some()
                        .then(|| prices.shared.clone());
                    let mut spending = match Spending::begin(&request, prices.clone()) {
                        Ok(spending) => spending,
                        Err(error) => break Err(error),
                    };
                    if let Some(shared) = shared {
                        let reserve = shared.reserve(request.context.clone(), spending.wanted());
                        *reserving = Some(Box::pin(reserve));
                        *this.spending = Some(spending);
                        *call = Some((request, prices));
                        continue;
                    }
                    spending.sent(None);
                    *this.spending = Some(spending);
                    let call = inner.call(request);
                    this.stage.set(Stage::Calling { call });
                }
                StageProj::Calling { call } => {
                    break ready!(call.poll(cx)).map_err(|error| error.into().into());
                }
                StageProj::Failed { error } => match error.take() {
                    Some(error) => break Err(error),
                    None => return Poll::Pending,
                },
                StageProj::Done => return Poll::Pending,
            }
        };
        this.stage.set(Stage::Done);
        let mut spending = this.spending.take();
        Poll::Ready(match result {
            Ok(answer) => Ok(answer.map_body(|body| ModelBudgetBody::new(body, spending))),
            Err(error) => {
                if let Some(spending) = &mut spending {
                    spending.failed(&error);
                }
                Err(error)
            }
        })
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
