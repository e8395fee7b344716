use super::{OtelService, metrics::Instruments};
use crate::{capture::Capture, settled::observe};
use concentric_core::{ToolCall, agent::ObserveSettled};
use opentelemetry::metrics::Meter;
use std::{future::Future, pin::Pin, sync::Arc};
use tower_layer::Layer;

/// Spans and metrics of runs, model calls and tool calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug, Default)]
pub struct Otel {
    options: Arc<Options>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) capture: Capture,
    pub(super) instruments: Option<Arc<Instruments>>,
}

impl Otel {
    /// Creates layers that record spans, without content, and no metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records metrics with instruments of `meter`. By default none are recorded.
    #[must_use]
    pub fn meter(mut self, meter: &Meter) -> Self {
        Arc::make_mut(&mut self.options).instruments = Some(Arc::new(Instruments::new(meter)));
        self
    }

    /// Records content: up to `max_chars` characters in each attribute. By default none is recorded.
    #[must_use]
    pub fn content(mut self, max_chars: usize) -> Self {
        Arc::make_mut(&mut self.options).capture.set_max(max_chars);
        self
    }

    /// Rewrites each recorded text, such as to remove secrets.
    #[must_use]
    pub fn redact(mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let options = Arc::make_mut(&mut self.options);
        options.capture.set_redact(redact);
        self
    }

    fn layer(&self, place: Place) -> OtelLayer {
        OtelLayer {
            options: Arc::clone(&self.options),
            place,
        }
    }

    /// Creates a layer around an agent: `invoke_agent`.
    pub fn run(&self) -> OtelLayer {
        self.layer(Place::Run)
    }

    /// Creates a layer around a model: `chat`.
    pub fn model(&self) -> OtelLayer {
        self.layer(Place::Model)
    }

    /// Creates a layer around tools: `execute_tool`. Added with `Toolset::hooks`, it also
    /// [observes](ObserveSettled) calls that do not run.
    pub fn tool(&self) -> OtelLayer {
        self.layer(Place::Tool)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Run,
    Model,
    Tool,
}

/// [`Layer`] that records the spans and metrics of one place ([`OtelService`]).
///
/// See [`Otel`].
#[derive(Clone, Debug)]
pub struct OtelLayer {
    options: Arc<Options>,
    place: Place,
}

impl<S> Layer<S> for OtelLayer {
    type Service = OtelService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OtelService::new(inner, Arc::clone(&self.options), self.place)
    }
}

impl ObserveSettled for OtelLayer {
    fn observe(&self, call: &ToolCall) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        observe(self, call)
    }
}
