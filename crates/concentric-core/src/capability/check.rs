use super::{
    Capabilities, Capability, Declares, Requires,
    declare::{Item, Kind},
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
    future::Future,
    pin::Pin,
    task::{self, Poll},
};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

/// A check at one side of a layer in [`Layers`](super::Layers).
#[derive(Clone, Copy, Debug)]
pub struct Check {
    layer: &'static str,
    items: &'static [Item],
    side: Side,
}

#[derive(Clone, Copy, Debug)]
enum Side {
    /// Outside the layer: the required capabilities are present.
    Required,
    /// Inside the layer: the provided capabilities are present.
    Provided,
}

impl Check {
    /// Checks the capabilities that an `L` around the service provides.
    pub(super) fn provided<L: Declares>() -> Self {
        Self {
            layer: type_name::<L>(),
            items: L::Capabilities::ITEMS,
            side: Side::Provided,
        }
    }

    /// Checks that the host has provided a `C`.
    pub(super) const fn given<C: Capability>() -> Self {
        Self {
            layer: "Layers::given",
            items: Requires::<C>::ITEMS,
            side: Side::Required,
        }
    }

    /// Records that the service uses a `C`, as a layer outside expects.
    pub(super) const fn used<C: Capability>() -> Self {
        Self {
            layer: "Layers::used",
            items: const { &[Item::new::<C>(Kind::Uses)] },
            side: Side::Provided,
        }
    }

    fn check(&self, context: &mut Context) -> Result<(), CapabilityError> {
        let Self { layer, items, side } = *self;
        if let Side::Required = side {
            return region::check(context, layer, items);
        }
        let is_missing = |item: &&Item| item.kind == Kind::Provides && !item.is_in(context);
        if let Some(missing) = items.iter().find(is_missing) {
            let capability = (missing.name)();
            return Err(CapabilityError::NotProvided { layer, capability });
        }
        region::mark(context, layer, items, None);
        Ok(())
    }
}

impl<S> Layer<S> for Check {
    type Service = Checked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Checked {
            inner,
            check: *self,
        }
    }
}

/// Middleware that checks one side of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Checked<S> {
    inner: S,
    check: Check,
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
        let ready = self.inner.poll_ready(cx);
        ready.map_err(|error| Error::from(error.into()))
    }

    #[inline]
    fn call(&mut self, mut request: R) -> Self::Future {
        match self.check.check(request.as_mut()) {
            Ok(()) => ResponseFuture::Call {
                call: self.inner.call(request),
            },
            Err(error) => ResponseFuture::Failed { error },
        }
    }
}

pin_project! {
    /// Response future for [`Checked`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    #[project = ResponseFutureProj]
    pub enum ResponseFuture<F> {
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
        match self.project() {
            ResponseFutureProj::Call { call } => {
                call.poll(cx).map_err(|error| Error::from(error.into()))
            }
            ResponseFutureProj::Failed { error } => Poll::Ready(Err(Error::from(*error))),
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
