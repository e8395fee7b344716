//! Aliases for the services of an agent, and type-erased services.

use crate::{
    describe::describe_type,
    request::ChatRequest,
    response::ChatResponse,
    tool_call::{ToolCall, ToolRound},
};
use concentric_proto::{Error, Event, RoundEvent, ToolOutcome};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::BoxCloneSyncService};
use tower_service::Service;

/// A model, an agent, or a stack of layers over one.
///
/// Implemented for every `Service<ChatRequest, Response = ChatResponse<B>>` whose body `B` is a
/// stream of events; not implemented manually.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model service",
    label = "not a `Service<ChatRequest, Response = ChatResponse<_>>`",
    note = "a model service answers a `ChatRequest` with a `ChatResponse<B>` whose body `B` is a `Stream<Item = Result<Event, Error>>`, and its error converts into a `BoxError`"
)]
pub trait ModelService:
    Service<ChatRequest, Response = ChatResponse<Self::Body>, Error: Into<BoxError>>
{
    /// The body of its answers.
    type Body: Stream<Item = Result<Event, Error>>;
}

impl<S, B> ModelService for S
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error: Into<BoxError>>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Body = B;
}

/// A tool, or a stack of layers over one.
///
/// Implemented for every `Service<ToolCall, Response = ToolOutcome>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool service",
    label = "not a `Service<ToolCall, Response = ToolOutcome>`",
    note = "a tool service answers a `ToolCall` with a `ToolOutcome`, and its error converts into a `BoxError`"
)]
pub trait ToolService: Service<ToolCall, Response = ToolOutcome, Error: Into<BoxError>> {}

impl<S> ToolService for S where S: Service<ToolCall, Response = ToolOutcome, Error: Into<BoxError>> {}

/// A service that executes the tool calls of a model's answer.
///
/// Implemented for every `Service<ToolRound>` whose response is a stream of [`RoundEvent`]s, one
/// for each call, in any order. An `Err`, from the future or as the last item, fails the run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a round service",
    label = "not a `Service<ToolRound>`",
    note = "a round service answers a `ToolRound` with a `Stream<Item = Result<RoundEvent, Error>>`; a `Toolset` is one"
)]
pub trait RoundService:
    Service<ToolRound, Response = Self::Outcomes, Error: Into<BoxError>>
{
    /// The stream of outcomes.
    type Outcomes: Stream<Item = Result<RoundEvent, Error>>;
}

impl<S, O> RoundService for S
where
    S: Service<ToolRound, Response = O, Error: Into<BoxError>>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Outcomes = O;
}

/// A service that is called more than once, through clones.
///
/// Implemented for everything that is `Clone`; a bound of this name makes the compiler say what to
/// do about tower's services that are not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `Clone`, but is called more than once",
    label = "is not `Clone`",
    note = "tower's `RateLimit` and other services that are not `Clone` need a `Buffer` around them: `.buffer(64)` above `.rate_limit(..)`"
)]
pub trait CloneService: Clone {}

// Without this, the compiler reports the bound of this impl, and not the explanation.
#[diagnostic::do_not_recommend]
impl<S: Clone> CloneService for S {}

/// A model service that can be [boxed](BoxModel).
///
/// Implemented for every such service; not implemented manually.
pub trait SharedModel:
    ModelService<Body: Send + 'static, Future: Send + 'static> + CloneService + Send + Sync + 'static
{
}

impl<S> SharedModel for S where
    S: ModelService<Body: Send + 'static, Future: Send + 'static>
        + CloneService
        + Send
        + Sync
        + 'static
{
}

/// Returns `service`, and fails to compile with an explanation if it is not a model service.
pub fn check_model<S: ModelService>(service: S) -> S {
    service
}

/// Returns `service`, and fails to compile with an explanation if it is not a tool service.
pub fn check_tool<S: ToolService>(service: S) -> S {
    service
}

/// A type-erased response body.
pub struct EventStream(Pin<Box<dyn Stream<Item = Result<Event, Error>> + Send>>);

impl EventStream {
    /// Erases the type of `stream`; an `EventStream` is returned unchanged.
    pub fn new<B>(stream: B) -> Self
    where
        B: Stream<Item = Result<Event, Error>> + Send + 'static,
    {
        unbox(stream).unwrap_or_else(|stream| Self(Box::pin(stream)))
    }
}

impl Stream for EventStream {
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

concentric_proto::opaque_debug!(EventStream);

/// Returns `value` as a `T` if it is one: a box is not boxed again, as in `axum_core::body::Body::new`.
fn unbox<T, V>(value: V) -> Result<T, V>
where
    T: 'static,
    V: 'static,
{
    let mut value = Some(value);
    if let Some(same) = (&mut value as &mut dyn Any).downcast_mut::<Option<T>>()
        && let Some(same) = same.take()
    {
        return Ok(same);
    }
    Err(value.expect("only a `T` is taken out"))
}

/// A type-erased model or agent that can be cloned and shared: for struct fields, for axum's state,
/// and to shorten the type of a long stack.
///
/// Costs one box for the future and one for the body of each call, and one indirect call per event.
#[derive(Clone)]
pub struct BoxModel {
    inner: BoxCloneSyncService<ChatRequest, ChatResponse<EventStream>, Error>,
    name: &'static str,
    // If the type does not name all layers.
    description: Option<Arc<str>>,
}

impl BoxModel {
    /// Erases the type of `service`; a `BoxModel` is returned unchanged.
    pub fn new<S>(service: S) -> Self
    where
        S: ModelService<Body: Send + 'static, Future: Send + 'static>
            + CloneService
            + Send
            + Sync
            + 'static,
    {
        unbox(service).unwrap_or_else(|service| Self {
            name: std::any::type_name::<S>(),
            inner: BoxCloneSyncService::new(Erase(service)),
            description: None,
        })
    }

    pub(crate) fn describing(mut self, description: String) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Describes the erased stack, one line per layer, outermost first.
    pub fn describe(&self) -> String {
        match &self.description {
            Some(description) => description.to_string(),
            None => describe_type(self.name),
        }
    }
}

impl Service<ChatRequest> for BoxModel {
    type Response = ChatResponse<EventStream>;
    type Error = Error;
    type Future = BoxFuture<ChatResponse<EventStream>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        self.inner.call(request)
    }
}

impl fmt::Debug for BoxModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoxModel").field(&self.name).finish()
    }
}

/// A type-erased tool that can be cloned and shared.
#[derive(Clone)]
pub struct BoxTool {
    inner: BoxCloneSyncService<ToolCall, ToolOutcome, Error>,
    name: &'static str,
}

impl BoxTool {
    /// Erases the type of `service`; a `BoxTool` is returned unchanged.
    pub fn new<S>(service: S) -> Self
    where
        S: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        unbox(service).unwrap_or_else(|service| Self {
            name: std::any::type_name::<S>(),
            inner: BoxCloneSyncService::new(EraseError(service)),
        })
    }

    /// Describes the erased stack, one line per layer, outermost first.
    pub fn describe(&self) -> String {
        describe_type(self.name)
    }
}

impl Service<ToolCall> for BoxTool {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = BoxFuture<ToolOutcome>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        self.inner.call(call)
    }
}

impl fmt::Debug for BoxTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoxTool").field(&self.name).finish()
    }
}

/// The boxed future of a type-erased service or journal.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Erases the body and the error of a model service, but not its future.
#[derive(Clone, Copy, Debug)]
struct Erase<S>(S);

impl<S> Service<ChatRequest> for Erase<S>
where
    S: ModelService<Body: Send + 'static>,
{
    type Response = ChatResponse<EventStream>;
    type Error = Error;
    type Future = EraseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        EraseFuture {
            inner: self.0.call(request),
        }
    }
}

pin_project! {
    struct EraseFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, B, E> Future for EraseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    type Output = Result<ChatResponse<EventStream>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.project().inner.poll(cx)).map_err(|e| Error::from(e.into()))?;
        Poll::Ready(Ok(response.map_body(EventStream::new)))
    }
}

/// Erases the error of a tool service, but not its future.
#[derive(Clone, Copy, Debug)]
struct EraseError<S>(S);

impl<S> Service<ToolCall> for EraseError<S>
where
    S: ToolService,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = EraseErrorFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        EraseErrorFuture {
            inner: self.0.call(call),
        }
    }
}

pin_project! {
    struct EraseErrorFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, T, E> Future for EraseErrorFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project()
            .inner
            .poll(cx)
            .map_err(|e| Error::from(e.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Ready, ready};

    #[derive(Clone)]
    struct Noop;

    impl Service<ToolCall> for Noop {
        type Response = ToolOutcome;
        type Error = Error;
        type Future = Ready<Result<ToolOutcome, Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: ToolCall) -> Self::Future {
            ready(Ok(ToolOutcome::done("")))
        }
    }

    #[test]
    fn a_boxed_tool_is_not_boxed_again() {
        let tool = BoxTool::new(Noop);
        assert!(tool.name.ends_with("Noop"));
        assert_eq!(BoxTool::new(tool.clone()).name, tool.name);
    }

    #[test]
    fn a_boxed_model_is_not_boxed_again() {
        let model = BoxModel::new(tower::service_fn(async |_: ChatRequest| {
            Ok::<_, Error>(ChatResponse::new(futures_util::stream::empty()))
        }))
        .describing("a stack".to_owned());
        let again = BoxModel::new(model.clone());
        assert_eq!(again.name, model.name);
        assert_eq!(again.describe(), "a stack");
    }
}
