use super::{
    Capabilities, Capability, Declares, Optional, Requires,
    declare::{Item, Kind},
    region,
};
use crate::{
    context::Context,
    fault::Fault,
    request::ChatRequest,
    tool_call::{ToolCall, ToolRound},
};
use concentric_proto::Error;
use pin_project_lite::pin_project;
use std::{
    any::type_name,
    fmt,
    future::Future,
    pin::Pin,
    task::{self, Poll},
};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that checks, at each call, that another layer has the capabilities it requires and
/// provides those it declares.
///
/// Wraps the layer in a plain `ServiceBuilder`. In [`Layers`](super::Layers), the compiler checks
/// requirements, and only the provided capabilities are checked at run time. `CheckedLayer` also
/// checks that the layer is [outside](super::Outside) the regions it declares, and records the
/// regions and expectations it declares for the layers inside ([`Encloses`](super::Encloses),
/// [`Expects`](super::Expects)).
///
/// ```
/// use concentric_core::{
///     Capability, ChatRequest, ErrorKind, capability::{CheckedLayer, Requires, declaring},
/// };
/// use concentric_layers::DefaultsLayer;
/// # use concentric_core::{ChatResponse, Error, Event};
/// # use futures_util::stream;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// #[derive(Clone)]
/// struct Store;
///
/// impl Capability for Store {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let model = tower::service_fn(async |_: ChatRequest| {
/// #     Ok::<_, Error>(ChatResponse::new(stream::empty::<Result<Event, Error>>()))
/// # });
/// let recall = declaring::<Requires<Store>, _>(DefaultsLayer::new());
/// let agent = ServiceBuilder::new()
///     .layer(CheckedLayer::new(recall)) // No layer outside provides a `Store`.
///     .service(model);
/// let error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Configuration);
/// # }
/// ```
///
/// # Cost
///
/// One lookup by type per declared capability and call; nothing per event.
///
/// # Backpressure
///
/// Readiness is forwarded. A call that fails the check keeps its reservation until the next call,
/// or until the service is dropped: the stack is misconfigured, so no other call succeeds either.
#[derive(Clone, Copy, Debug)]
pub struct CheckedLayer<L> {
    layer: L,
}

impl<L> CheckedLayer<L>
where
    L: Declares,
{
    /// Wraps `layer`.
    pub const fn new(layer: L) -> Self {
        Self { layer }
    }
}

impl<L> Declares for CheckedLayer<L>
where
    L: Declares,
{
    type Capabilities = L::Capabilities;
}

impl<S, L> Layer<S> for CheckedLayer<L>
where
    L: Layer<Checked<S>> + Declares,
{
    type Service = Checked<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        Checked::required::<L>(self.layer.layer(Checked::provided::<L>(inner)))
    }
}

/// Middleware that checks one side of a layer's declaration.
///
/// See [`CheckedLayer`].
#[derive(Clone, Copy)]
pub struct Checked<S> {
    inner: S,
    layer: fn() -> &'static str,
    items: &'static [Item],
    side: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Outside the layer: the required capabilities are present.
    Required,
    /// Inside the layer: the provided capabilities are present.
    Provided,
}

impl<S> Checked<S> {
    /// Wraps the service of an `L`, and checks the capabilities that the layer requires.
    ///
    /// Use it in a layer's own [`Layer::layer`] to check the layer in every stack.
    pub const fn required<L>(inner: S) -> Self
    where
        L: Declares,
    {
        Self::new::<L>(inner, Side::Required)
    }

    /// Wraps the inner service of an `L`, and checks the capabilities that the layer provides.
    pub const fn provided<L>(inner: S) -> Self
    where
        L: Declares,
    {
        Self::new::<L>(inner, Side::Provided)
    }

    pub(super) const fn given<C>(inner: S) -> Self
    where
        C: Capability,
    {
        Self {
            inner,
            layer: || "Layers::given",
            items: Requires::<C>::ITEMS,
            side: Side::Required,
        }
    }

    /// Wraps a service that uses a `C`, as a layer outside expects.
    pub(super) const fn used<C>(inner: S) -> Self
    where
        C: Capability,
    {
        Self {
            inner,
            layer: || "Layers::used",
            items: Optional::<C>::ITEMS,
            side: Side::Provided,
        }
    }

    const fn new<L>(inner: S, side: Side) -> Self
    where
        L: Declares,
    {
        Self {
            inner,
            layer: type_name::<L>,
            items: L::Capabilities::ITEMS,
            side,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Checks this side of the layer. The inner side also records regions and expectations.
    fn check(&self, context: &mut Context) -> Result<(), Fault> {
        if self.side == Side::Required {
            return region::check(context, self.layer, self.items);
        }
        let is_missing = |item: &&Item| {
            matches!(item.kind, Kind::Provides | Kind::Replaces) && !(item.is_in)(context)
        };
        if let Some(missing) = self.items.iter().find(is_missing) {
            return Err(Fault::NotProvided {
                layer: (self.layer)(),
                capability: (missing.name)(),
            });
        }
        region::mark(context, self.layer, self.items, None);
        Ok(())
    }
}

impl<S, R> Service<R> for Checked<S>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    R: AsMut<Context>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::from(error.into()))
    }

    #[inline]
    fn call(&mut self, mut request: R) -> Self::Future {
        let state = match self.check(request.as_mut()) {
            Ok(()) => State::Call {
                call: self.inner.call(request),
            },
            Err(fault) => State::Fault { fault },
        };
        ResponseFuture { state }
    }
}

impl<S> fmt::Debug for Checked<S>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked")
            .field("inner", &self.inner)
            .field("layer", &(self.layer)())
            .field("side", &self.side)
            .finish()
    }
}

pin_project! {
    /// Response future for [`Checked`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Call { #[pin] call: F },
        Fault { fault: Fault },
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Call { call } => call.poll(cx).map_err(|error| Error::from(error.into())),
            StateProj::Fault { fault } => Poll::Ready(Err(Error::from(*fault))),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

macro_rules! contexts {
    ($($request:ident)*) => {$(
        impl AsRef<Context> for $request {
            fn as_ref(&self) -> &Context {
                &self.context
            }
        }

        impl AsMut<Context> for $request {
            fn as_mut(&mut self) -> &mut Context {
                &mut self.context
            }
        }
    )*};
}

contexts!(ChatRequest ToolRound ToolCall);
