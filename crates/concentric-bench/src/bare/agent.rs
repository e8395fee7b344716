//! The loop between a model and its tools.

use super::{Call, Error, Event, Request, ToolResult, Turn};
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use pin_project_lite::pin_project;
use smol_str::SmolStr;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower::util::Oneshot;
use tower_service::Service;

/// A model and its tools.
#[derive(Clone, Debug)]
pub(crate) struct Agent<M, T> {
    pub(crate) model: M,
    pub(crate) tools: T,
}

impl<M, T, B> Service<Request> for Agent<M, T>
where
    M: Service<Request, Response = B, Error = Error> + Clone,
    B: Stream<Item = Result<Event, Error>>,
    T: Service<Call, Response = ToolResult, Error = Error> + Clone,
{
    type Response = Body<M, T, B>;
    type Error = Error;
    type Future = Answer<M, T, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Answer {
            call: Oneshot::new(self.model.clone(), request.clone()),
            run: Some(Run {
                model: self.model.clone(),
                tools: self.tools.clone(),
                history: request.history,
                text: String::new(),
                calls: Vec::new(),
                results: Vec::new(),
            }),
        }
    }
}

pin_project! {
    /// Resolves when the model does.
    pub(crate) struct Answer<M, T, B>
    where
        M: Service<Request, Response = B>,
    {
        #[pin]
        call: Oneshot<M, Request>,
        run: Option<Run<M, T>>,
    }
}

impl<M, T, B> Future for Answer<M, T, B>
where
    M: Service<Request, Response = B, Error = Error>,
    T: Service<Call>,
{
    type Output = Result<Body<M, T, B>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let body = ready!(this.call.poll(cx))?;
        Poll::Ready(Ok(Body {
            run: this.run.take().expect("polled after completion"),
            work: Work::Body { body },
        }))
    }
}

struct Run<M, T> {
    model: M,
    tools: T,
    history: Arc<Vec<Turn>>,
    text: String,
    calls: Vec<Call>,
    results: Vec<Arc<ToolResult>>,
}

pin_project! {
    /// A run.
    pub(crate) struct Body<M, T, B>
    where
        M: Service<Request, Response = B>,
        T: Service<Call>,
    {
        run: Run<M, T>,
        #[pin]
        work: Work<M, T, B>,
    }
}

pin_project! {
    #[project = WorkProj]
    enum Work<M, T, B>
    where
        M: Service<Request, Response = B>,
        T: Service<Call>,
    {
        Model { #[pin] call: Oneshot<M, Request> },
        Body { #[pin] body: B },
        Tools { calls: FuturesUnordered<Oneshot<T, Call>> },
        Done,
    }
}

impl<M, T, B> Stream for Body<M, T, B>
where
    M: Service<Request, Response = B, Error = Error> + Clone,
    B: Stream<Item = Result<Event, Error>>,
    T: Service<Call, Response = ToolResult, Error = Error> + Clone,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        let run = this.run;
        loop {
            match this.work.as_mut().project() {
                WorkProj::Body { body } => {
                    let item = ready!(body.poll_next(cx));
                    match &item {
                        Some(Ok(Event::Text(text))) => run.text.push_str(text),
                        Some(Ok(Event::Call(call))) => run.calls.push(Call::clone(call)),
                        Some(Ok(Event::Finish)) if !run.calls.is_empty() => {
                            let calls = run
                                .calls
                                .iter()
                                .map(|call| Oneshot::new(run.tools.clone(), call.clone()))
                                .collect();
                            this.work.set(Work::Tools { calls });
                            continue;
                        }
                        Some(Ok(Event::Finish)) => {
                            let text = SmolStr::from(std::mem::take(&mut run.text));
                            Arc::make_mut(&mut run.history).push(Turn::Assistant(text));
                            this.work.set(Work::Done);
                        }
                        _ => {}
                    }
                    return Poll::Ready(item);
                }
                WorkProj::Tools { calls } => match ready!(Pin::new(calls).poll_next(cx)) {
                    Some(Ok(result)) => {
                        let result = Arc::new(result);
                        run.results.push(result.clone());
                        return Poll::Ready(Some(Ok(Event::Result(result))));
                    }
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => {
                        Arc::make_mut(&mut run.history).push(Turn::Round {
                            calls: std::mem::take(&mut run.calls),
                            results: std::mem::take(&mut run.results),
                        });
                        let request = Request {
                            history: run.history.clone(),
                        };
                        let call = Oneshot::new(run.model.clone(), request);
                        this.work.set(Work::Model { call });
                    }
                },
                WorkProj::Model { call } => {
                    let body = ready!(call.poll(cx))?;
                    this.work.set(Work::Body { body });
                }
                WorkProj::Done => return Poll::Ready(None),
            }
        }
    }
}
