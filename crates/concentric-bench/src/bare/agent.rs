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
    /// Response future: resolves when the model's does.
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
    /// Response body of a run.
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

    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A fast path for text, the most frequent event, which is inlined into the consumer.
        let this = self.as_mut().project();
        if let WorkProj::Body { body } = this.work.project() {
            let item = ready!(body.poll_next(cx));
            if let Some(Ok(Event::Text(text))) = &item {
                this.run.text.push_str(text);
                return Poll::Ready(item);
            }
            if let Some(item) = self.as_mut().take(item) {
                return Poll::Ready(item);
            }
        }
        self.poll_work(cx)
    }
}

impl<M, T, B> Body<M, T, B>
where
    M: Service<Request, Response = B, Error = Error> + Clone,
    B: Stream<Item = Result<Event, Error>>,
    T: Service<Call, Response = ToolResult, Error = Error> + Clone,
{
    /// Handles an item other than text, and returns it unless the run continues with tool calls.
    #[inline(never)]
    fn take(
        self: Pin<&mut Self>,
        item: Option<Result<Event, Error>>,
    ) -> Option<Option<Result<Event, Error>>> {
        let mut this = self.project();
        let run = this.run;
        match &item {
            Some(Ok(Event::Call(call))) => run.calls.push(Call::clone(call)),
            Some(Ok(Event::Finish)) if !run.calls.is_empty() => {
                let calls = run
                    .calls
                    .iter()
                    .map(|call| Oneshot::new(run.tools.clone(), call.clone()))
                    .collect();
                this.work.set(Work::Tools { calls });
                return None;
            }
            Some(Ok(Event::Finish)) => {
                let text = SmolStr::from(std::mem::take(&mut run.text));
                Arc::make_mut(&mut run.history).push(Turn::Assistant(text));
                this.work.set(Work::Done);
            }
            _ => {}
        }
        Some(item)
    }

    /// Runs the tools, then calls the model again.
    #[inline(never)]
    fn poll_work(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, Error>>> {
        loop {
            let mut this = self.as_mut().project();
            let run = this.run;
            match this.work.as_mut().project() {
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
                WorkProj::Body { .. } => return self.poll_next(cx),
                WorkProj::Done => return Poll::Ready(None),
            }
        }
    }
}
