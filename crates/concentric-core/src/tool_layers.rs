//! Layers around tool calls, with their types erased.

use crate::{
    fatal::fatal,
    hooks::{Flow, Hooks, ToolHooksLayer},
    service::{BoxTool, CloneService, ToolService},
    tool_call::{Seal, ToolCall},
};
use concentric_proto::{Error, ErrorKind, ToolOutcome, ToolSpecs};
use pin_project_lite::pin_project;
use std::{
    any::type_name,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

/// Layers around tool calls, the first added outermost.
///
/// Each layer is erased when it is added, so that compile time and the type of a stack do not grow
/// with the number of layers.
#[derive(Clone, Default)]
pub struct ToolLayers(Vec<Entry>);

#[derive(Clone)]
struct Entry {
    name: &'static str,
    wrap: Arc<Wrap>,
    // Only for hooks, which also receive the outcomes of settled calls.
    observer: Option<Arc<dyn ObserveSettled>>,
}

/// Adds a layer around a service, and checks the calls of the next outer layer.
type Wrap = dyn Fn(BoxTool, Option<Outside>) -> BoxTool + Send + Sync;

/// The observation of a settled call, which cannot change its outcome.
type Observation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The decision of hooks about a call, with the call as they edited it.
type Decision = Pin<Box<dyn Future<Output = (ToolCall, Result<Flow<ToolOutcome>, Error>)> + Send>>;

/// Hooks and layers that a round service can also call for calls that do not enter the layers: to observe
/// those that have an outcome, and to decide about those that are not made.
pub trait ObserveSettled: Send + Sync + 'static {
    /// Starts to observe a [settled](ToolCall::settled) call; `None` if the hooks do not apply to it.
    fn observe(&self, call: &ToolCall) -> Option<Observation>;

    /// Calls [`before_call`](Hooks::before_call) for a call that is not made; by default, nothing is called and
    /// the call continues.
    fn ask(&self, call: ToolCall) -> Decision {
        Box::pin(std::future::ready((call, Ok(Flow::Continue))))
    }

    /// Checks that the hooks can be called for `tools`; by default, always.
    ///
    /// # Errors
    ///
    /// The hooks select a tool that is not among them.
    fn check(&self, tools: &ToolSpecs) -> Result<(), BoxError> {
        let _ = tools;
        Ok(())
    }
}

impl<H> ObserveSettled for ToolHooksLayer<H>
where
    H: Hooks,
{
    fn observe(&self, call: &ToolCall) -> Option<Observation> {
        Some(Box::pin(self.observe(call.clone())))
    }

    fn ask(&self, call: ToolCall) -> Decision {
        Box::pin(self.ask(call))
    }
}

impl Entry {
    fn new<L>(layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        Self {
            name: type_name::<L>(),
            wrap: Arc::new(move |inner, outside| checked(layer.layer(inner), outside)),
            observer: None,
        }
    }
}

impl ToolLayers {
    /// Adds a layer inside those that were added before.
    pub fn push<L>(&mut self, layer: L)
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.0.push(Entry::new(layer));
    }

    /// Adds hooks that also observe settled calls.
    pub fn push_hooks<L>(&mut self, hooks: L)
    where
        L: ObserveSettled + Layer<BoxTool> + Clone,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.0.push(Entry {
            observer: Some(Arc::new(hooks.clone())),
            ..Entry::new(hooks)
        });
    }

    /// Adds the layers of `inner` inside those of `self`.
    pub fn extend(&mut self, inner: &Self) {
        self.0.extend(inner.0.iter().cloned());
    }

    /// Returns whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that the hooks can be called for `tools`, those that the layers are around.
    ///
    /// # Errors
    ///
    /// The error of the first [hooks](ObserveSettled::check) that cannot.
    pub fn check(&self, tools: &ToolSpecs) -> Result<(), BoxError> {
        let mut observers = self.0.iter().filter_map(|it| it.observer.as_ref());
        observers.try_for_each(|it| it.check(tools))
    }

    /// Calls [`before_call`](Hooks::before_call) of the hooks among the layers, the outermost first,
    /// until one does not continue. Returns the call as they edited it.
    pub async fn ask(&self, mut call: ToolCall) -> (ToolCall, Result<Flow<ToolOutcome>, Error>) {
        for hooks in self.0.iter().filter_map(|it| it.observer.as_ref()) {
            let (edited, flow) = hooks.ask(call).await;
            match flow {
                Ok(Flow::Continue) => call = edited,
                decided => return (edited, decided),
            }
        }
        (call, Ok(Flow::Continue))
    }

    /// Calls the hooks that observe settled calls, the innermost first; `None` if there are none.
    pub fn observe(&self, call: impl FnOnce() -> ToolCall) -> Option<Observation> {
        let mut observers = self.0.iter().rev().filter_map(|it| it.observer.as_ref());
        let first = observers.next()?;
        let call = call();
        let observers = [first].into_iter().chain(observers);
        // All hooks start before the first one is awaited, so that each observes a cancelled run.
        let observations: Vec<_> = observers.filter_map(|it| it.observe(&call)).collect();
        (!observations.is_empty()).then(|| -> Observation {
            Box::pin(async move {
                for observation in observations {
                    observation.await;
                }
            })
        })
    }

    /// Adds the layers around `innermost`. A call without `seal` is reported as an error of the
    /// layer that made it.
    pub fn around<S>(&self, innermost: S, seal: Option<&Seal>) -> BoxTool
    where
        S: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        let outside = |at: usize| {
            let outside = at.checked_sub(1).and_then(|at| self.0.get(at));
            outside.zip(seal).map(|(layer, seal)| Outside {
                name: layer.name,
                seal: seal.clone(),
            })
        };
        let layers = self.0.iter().enumerate().rev();
        let innermost = checked(innermost, outside(self.0.len()));
        layers.fold(innermost, |inner, (at, layer)| {
            (layer.wrap)(inner, outside(at))
        })
    }
}

impl fmt::Debug for ToolLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|layer| layer.name))
            .finish()
    }
}

/// The next outer layer.
#[derive(Clone)]
struct Outside {
    name: &'static str,
    // The mark of calls that the round service makes.
    seal: Seal,
}

/// A service inside another layer.
#[derive(Clone)]
struct Checked<S> {
    service: S,
    outside: Option<Outside>,
}

fn checked<S>(service: S, outside: Option<Outside>) -> BoxTool
where
    S: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
{
    BoxTool::new(Checked { service, outside })
}

impl<S> Service<ToolCall> for Checked<S>
where
    S: ToolService,
{
    type Response = ToolOutcome;
    type Error = BoxError;
    type Future = CheckedFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, call: ToolCall) -> Self::Future {
        match &self.outside {
            Some(outside) if !call.is_sealed(&outside.seal) => {
                CheckedFuture::Forged { by: outside.name }
            }
            _ => CheckedFuture::Call {
                call: self.service.call(call),
            },
        }
    }
}

pin_project! {
    #[project = CheckedProj]
    enum CheckedFuture<F> {
        Call { #[pin] call: F },
        Forged { by: &'static str },
    }
}

impl<F, E> Future for CheckedFuture<F>
where
    F: Future<Output = Result<ToolOutcome, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ToolOutcome, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            CheckedProj::Call { call } => call.poll(cx).map_err(Into::into),
            CheckedProj::Forged { by } => Poll::Ready(Err(forged(by).into())),
        }
    }
}

/// The error for a layer that made a call of its own.
fn forged(layer: &str) -> Error {
    fatal(Error::new(
        ErrorKind::Configuration,
        format!(
            "the layer `{layer}` replaced a tool call or its context; a layer may only change the \
             call's arguments"
        ),
    ))
}
