use super::{
    Capabilities, Capability, Declares, Requires,
    declare::{Item, Kind},
    order::Used,
    region,
};
use crate::{
    capability_error::CapabilityError,
    context::Context,
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
use tower_service::Service;

/// Middleware that checks one side of a declaration in [`Layers`](super::Layers).
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
    /// Wraps the inner service of an `L`, and checks the capabilities that the layer provides.
    pub(super) const fn provided<L>(inner: S) -> Self
    where
        L: Declares,
    {
        Self {
            inner,
            layer: type_name::<L>,
            items: L::Capabilities::ITEMS,
            side: Side::Provided,
        }
    }

    /// Wraps a service in which the host must have provided a `C`.
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
            items: Used::<(), C>::ITEMS,
            side: Side::Provided,
        }
    }

    /// Checks this side of the layer. The inner side also records regions and expectations.
    fn check(&self, context: &mut Context) -> Result<(), CapabilityError> {
        if self.side == Side::Required {
            return region::check(context, self.layer, self.items);
        }
        let is_missing = |item: &&Item| item.kind == Kind::Provides && !(item.is_in)(context);
        if let Some(missing) = self.items.iter().find(is_missing) {
            return Err(CapabilityError::NotProvided {
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
            Err(error) => State::Failed { error },
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
        Failed { error: CapabilityError },
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
            StateProj::Failed { error } => Poll::Ready(Err(Error::from(*error))),
        }
    }
}

concentric_proto::opaque_debug!(ResponseFuture<F>);

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
