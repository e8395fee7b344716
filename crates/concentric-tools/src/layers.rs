use crate::{
    fatal,
    matcher::Matched,
    scoped::{ScopedLayer, applies},
};
use concentric_core::{
    BoxError, BoxTool, Error, ErrorKind, Seal, ToolCall, ToolOutcome, ToolService,
    hooks::{Hooks, ToolHooksLayer},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Layers around tool calls, the first added outermost.
///
/// Each layer is erased when it is added, so that compile time and the type of a stack do not grow
/// with the number of layers.
#[derive(Clone, Default)]
pub(crate) struct Layers(Vec<Entry>);

#[derive(Clone)]
struct Entry {
    name: &'static str,
    wrap: Arc<Wrap>,
    /// Only for hooks, which also receive the outcomes of settled calls.
    observe: Option<Arc<Observe>>,
}

/// Calls a hook with a settled call; `None` if the hook does not apply to it.
pub(crate) type Observe = dyn Fn(&ToolCall) -> Option<Observation> + Send + Sync;

/// The observation of a settled call, which cannot change its outcome.
pub(crate) type Observation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A layer of hooks that can also observe settled calls.
pub trait ObserveSettled {
    /// Returns a function that calls the hooks with a settled call.
    fn observe(&self) -> Arc<Observe>;
}

impl<H> ObserveSettled for ToolHooksLayer<H>
where
    H: Hooks,
{
    fn observe(&self) -> Arc<Observe> {
        let hooks = self.clone();
        Arc::new(move |call| Some(Box::pin(hooks.observe(call.clone()))))
    }
}

impl<L> ObserveSettled for ScopedLayer<L>
where
    L: ObserveSettled,
{
    fn observe(&self) -> Arc<Observe> {
        let (matcher, hooks) = (self.matcher.clone(), self.layer.observe());
        Arc::new(move |call| match matcher.matches(call) {
            Matched::Now(matched) => applies(matched).then(|| hooks(call)).flatten(),
            Matched::Later(later) => {
                let (hooks, call) = (Arc::clone(&hooks), call.clone());
                Some(Box::pin(async move {
                    if applies(later.await)
                        && let Some(observation) = hooks(&call)
                    {
                        observation.await;
                    }
                }))
            }
        })
    }
}

/// Adds a layer around a service, and checks the calls of the next outer layer.
type Wrap = dyn Fn(BoxTool, Option<Outside>) -> BoxTool + Send + Sync;

impl Entry {
    fn new<L>(layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        Self {
            name: std::any::type_name::<L>(),
            wrap: Arc::new(move |inner, outside| {
                let service = layer.layer(inner);
                BoxTool::new(Within { service, outside })
            }),
            observe: None,
        }
    }
}

/// The next outer layer.
#[derive(Clone)]
struct Outside {
    name: &'static str,
    /// The mark of calls that the round service makes.
    seal: Seal,
}

impl Layers {
    pub(crate) fn push<L>(&mut self, layer: L)
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.0.push(Entry::new(layer));
    }

    /// Adds hooks that also observe settled calls.
    pub(crate) fn push_hooks<L>(&mut self, hooks: L)
    where
        L: ObserveSettled + Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        let observe = hooks.observe();
        self.0.push(Entry {
            observe: Some(observe),
            ..Entry::new(hooks)
        });
    }

    /// Calls the hooks that observe settled calls, the innermost first; `None` if there are none.
    pub(crate) fn observe(&self, call: impl FnOnce() -> ToolCall) -> Option<Observation> {
        let mut observers = self.0.iter().rev().filter_map(|it| it.observe.as_ref());
        let first = observers.next()?;
        let call = call();
        let observers = [first].into_iter().chain(observers);
        // All hooks start before the first one is awaited, so that each observes a cancelled run.
        let observations: Vec<_> = observers.filter_map(|observe| observe(&call)).collect();
        (!observations.is_empty()).then(|| -> Observation {
            Box::pin(async move {
                for observation in observations {
                    observation.await;
                }
            })
        })
    }

    /// All layers, those of `self` outermost.
    pub(crate) fn and(&self, inner: &Self) -> Self {
        Self(self.0.iter().chain(&inner.0).cloned().collect())
    }

    pub(crate) fn innermost(&self) -> &'static str {
        self.0.last().map_or("?", |layer| layer.name)
    }

    /// The error for a layer that made a call of its own.
    pub(crate) fn forged(layer: &str) -> Error {
        fatal(Error::new(
            ErrorKind::Configuration,
            format!(
                "the layer `{layer}` replaced a tool call or its context; a layer may only change \
                 the call's arguments"
            ),
        ))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the layers around `innermost`. A call without `seal` is reported as an error of the
    /// layer that made it.
    pub(crate) fn around(&self, innermost: BoxTool, seal: Option<&Seal>) -> BoxTool {
        let mut service = innermost;
        for (at, layer) in self.0.iter().enumerate().rev() {
            let outside = at.checked_sub(1).and_then(|at| self.0.get(at));
            let outside = outside.zip(seal).map(|(outside, seal)| Outside {
                name: outside.name,
                seal: seal.clone(),
            });
            service = (layer.wrap)(service, outside);
        }
        service
    }
}

/// A layer's service, inside of another layer.
#[derive(Clone)]
struct Within<S> {
    service: S,
    outside: Option<Outside>,
}

impl<S> Service<ToolCall> for Within<S>
where
    S: ToolService<Response = ToolOutcome>,
{
    type Response = ToolOutcome;
    type Error = BoxError;
    type Future = WithinFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, call: ToolCall) -> Self::Future {
        match &self.outside {
            Some(outside) if !call.is_sealed(&outside.seal) => {
                WithinFuture::Forged { by: outside.name }
            }
            _ => WithinFuture::Call {
                call: self.service.call(call),
            },
        }
    }
}

pin_project! {
    #[project = WithinProj]
    enum WithinFuture<F> {
        Call { #[pin] call: F },
        Forged { by: &'static str },
    }
}

impl<F, E> Future for WithinFuture<F>
where
    F: Future<Output = Result<ToolOutcome, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ToolOutcome, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            WithinProj::Call { call } => call.poll(cx).map_err(Into::into),
            WithinProj::Forged { by } => Poll::Ready(Err(Layers::forged(by).into())),
        }
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|layer| layer.name))
            .finish()
    }
}
