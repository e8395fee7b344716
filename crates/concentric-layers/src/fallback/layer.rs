use super::{FallbackBody, ResponseFuture, attempts::Attempts};
use concentric_core::{
    BoxError, BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, Str,
    service::SharedModel,
};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that calls other models in place of one that fails ([`Fallback`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct FallbackLayer(Arc<Options>);

#[derive(Clone)]
pub(super) struct Options {
    name: Str,
    others: Vec<Other>,
    on: Option<Arc<Decide>>,
    pub(super) is_sticky: bool,
    pub(super) time_to_first: Option<Duration>,
}

#[derive(Clone)]
struct Other {
    name: Str,
    model: BoxModel,
    edit: Option<Arc<Edit>>,
}

type Decide = dyn Fn(&Error) -> Option<bool> + Send + Sync;
type Edit = dyn Fn(&mut ChatRequest) + Send + Sync;

impl FallbackLayer {
    /// Creates a layer around the model `name`, without other models.
    ///
    /// The name stands in events and errors. Layers of one run need different names, as they store their
    /// choice under them.
    pub fn new(name: impl Into<Str>) -> Self {
        Self(Arc::new(Options {
            name: name.into(),
            others: Vec::new(),
            on: None,
            is_sticky: true,
            time_to_first: None,
        }))
    }

    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds a model, to be called if all models before it have failed.
    ///
    /// Its name differs from those of the others: a [sticky](Self::sticky) choice is stored as a name, and is the
    /// first model of that name.
    #[must_use]
    pub fn or(self, name: impl Into<Str>, model: impl SharedModel) -> Self {
        let (name, model) = (name.into(), BoxModel::new(model));
        let edit = None;
        self.with(|options| options.others.push(Other { name, model, edit }))
    }

    /// Like [`or`](Self::or), with a function that changes the request for this model, such as its options.
    #[must_use]
    pub fn or_with(
        self,
        name: impl Into<Str>,
        model: impl SharedModel,
        edit: impl Fn(&mut ChatRequest) + Send + Sync + 'static,
    ) -> Self {
        let (name, model) = (name.into(), BoxModel::new(model));
        let edit: Option<Arc<Edit>> = Some(Arc::new(edit));
        self.with(|options| options.others.push(Other { name, model, edit }))
    }

    /// Decides after which errors the next model is called; `None` for the
    /// [default](super#which-errors-lead-to-another-model).
    ///
    /// ```
    /// use concentric_core::{BoxModel, ErrorKind};
    /// use concentric_layers::{FallbackLayer, guard, guardrail};
    ///
    /// // A provider's content filter may refuse what another model answers. What a guard of the application
    /// // blocked must reach no model.
    /// fn unfiltered(other: BoxModel) -> FallbackLayer {
    ///     const OWN: [&str; 3] = [guard::BLOCKED, guardrail::BLOCKED, guardrail::FAILED];
    ///     FallbackLayer::new("first").or("other", other).on(|error| {
    ///         let is_own = error.code().is_some_and(|code| OWN.contains(&code));
    ///         (error.kind() == ErrorKind::ContentFilter && !is_own).then_some(true)
    ///     })
    /// }
    /// # let _ = unfiltered;
    /// ```
    ///
    /// A model's own refusal is an answer, and no error. A [`Transform`](crate::Transform) inside this layer that
    /// fails on an [`Event::RefusalDelta`](concentric_core::Event::RefusalDelta) makes it one.
    #[must_use]
    pub fn on(self, decide: impl Fn(&Error) -> Option<bool> + Send + Sync + 'static) -> Self {
        self.with(|options| options.on = Some(Arc::new(decide)))
    }

    /// Sets whether later calls of a run begin with the model that answered last; by default, they do.
    #[must_use]
    pub fn sticky(self, is_sticky: bool) -> Self {
        self.with(|options| options.is_sticky = is_sticky)
    }

    /// Sets the time for the first content of each model, by the clock of the run; by default, there is no
    /// limit. A model that exceeds it fails with [`Timeout`](ErrorKind::Timeout) and the code
    /// [`FIRST_CONTENT`](super::FIRST_CONTENT), and no retry policy around the layer repeats it. With zero, only a
    /// model that answers at once is in time.
    ///
    /// The late call is dropped, so a circuit breaker inside does not count it: a timeout inside of the breaker
    /// must be shorter than this time to open its circuit.
    #[must_use]
    pub fn time_to_first(self, limit: Duration) -> Self {
        self.with(|options| options.time_to_first = Some(limit))
    }
}

impl Options {
    /// The number of models.
    pub(super) fn len(&self) -> usize {
        self.others.len() + 1
    }

    /// The name of the model at `index`.
    pub(super) fn name(&self, index: usize) -> &Str {
        let other = index.checked_sub(1).and_then(|at| self.others.get(at));
        other.map_or(&self.name, |other| &other.name)
    }

    /// The index of the model `name`.
    pub(super) fn position(&self, name: &Str) -> Option<usize> {
        (0..self.len()).find(|index| self.name(*index) == name)
    }

    /// The model at `index` and the request for it; `None` for the first model.
    pub(super) fn other(
        &self,
        index: usize,
        request: &ChatRequest,
    ) -> Option<(BoxModel, ChatRequest)> {
        let other = self.others.get(index.checked_sub(1)?)?;
        let mut request = request.clone();
        if request.options.model.is_some() || !request.options.provider.is_empty() {
            let options = request.options_mut();
            options.model = None;
            options.provider.clear();
        }
        if let Some(edit) = &other.edit {
            edit(&mut request);
        }
        Some((other.model.clone(), request))
    }

    /// Whether another model is called after `error`.
    pub(super) fn is_cause(&self, error: &Error) -> bool {
        if matches!(error.kind(), ErrorKind::Waiting | ErrorKind::Cancelled) {
            return false;
        }
        let decided = self.on.as_ref().and_then(|on| on(error));
        decided.unwrap_or_else(|| match error.kind() {
            ErrorKind::RateLimited
            | ErrorKind::Overloaded
            | ErrorKind::Server
            | ErrorKind::Timeout
            | ErrorKind::Connection
            | ErrorKind::Truncated
            | ErrorKind::Protocol
            | ErrorKind::NotFound
            | ErrorKind::Quota
            | ErrorKind::ContextWindow => true,
            // Found before the request was sent.
            ErrorKind::InvalidRequest => error.code() == Some("unsupported"),
            _ => false,
        })
    }
}

impl fmt::Debug for FallbackLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&Str> = (0..self.0.len()).map(|index| self.0.name(index)).collect();
        f.debug_struct("FallbackLayer")
            .field("models", &names)
            .field("sticky", &self.0.is_sticky)
            .field("time_to_first", &self.0.time_to_first)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FallbackLayer {
    type Service = Fallback<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Fallback {
            inner,
            options: Arc::clone(&self.0),
        }
    }
}

/// Middleware that calls other models in place of the inner one if that fails.
#[derive(Clone)]
pub struct Fallback<S> {
    inner: S,
    options: Arc<Options>,
}

impl<S> Fallback<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for Fallback<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("inner", &self.inner)
            .field("name", &self.options.name)
            .finish_non_exhaustive()
    }
}

impl<S, B> Service<ChatRequest> for Fallback<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<FallbackBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let attempts = Attempts::new(request, Arc::clone(&self.options));
        ResponseFuture::new(self.inner.clone(), attempts)
    }
}
