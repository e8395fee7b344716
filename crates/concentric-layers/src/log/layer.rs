use super::Log;
use crate::{capture::Capture, settled::observe};
use concentric_core::{ToolCall, agent::ObserveSettled};
use std::{future::Future, pin::Pin, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that logs runs, model calls and tool calls ([`Log`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct LogLayer {
    options: Arc<Options>,
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) starts: bool,
    pub(super) details: bool,
    pub(super) capture: Capture,
}

impl LogLayer {
    fn new(starts: bool, details: bool) -> Self {
        Self {
            options: Arc::new(Options {
                starts,
                details,
                capture: Capture::default(),
            }),
        }
    }

    /// Creates a layer that logs the ends of calls.
    pub fn minimal() -> Self {
        Self::new(false, false)
    }

    /// Creates a layer that logs the starts and the ends of calls.
    pub fn standard() -> Self {
        Self::new(true, false)
    }

    /// Creates a layer that also logs the options of model calls, at the level debug.
    pub fn verbose() -> Self {
        Self::new(true, true)
    }

    /// Logs content: up to `max_chars` characters of each text. By default none is logged.
    #[must_use]
    pub fn content(mut self, max_chars: usize) -> Self {
        Arc::make_mut(&mut self.options).capture.set_max(max_chars);
        self
    }

    /// Rewrites each logged text, such as to remove secrets.
    #[must_use]
    pub fn redact(mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let options = Arc::make_mut(&mut self.options);
        options.capture.set_redact(redact);
        self
    }
}

impl<S> Layer<S> for LogLayer {
    type Service = Log<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Log::new(inner, Arc::clone(&self.options))
    }
}

impl ObserveSettled for LogLayer {
    fn observe(&self, call: &ToolCall) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        observe(self, call)
    }
}
