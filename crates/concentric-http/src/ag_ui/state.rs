//! Values of the request body in the extensions of the run.

use std::{
    error::Error,
    fmt, io,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use concentric_core::{EmitError, Event};
use serde_json::Value;

use super::Context;

/// Facts that the client's application offers to the agent: the input's `context`.
///
/// An extension of the run's [`Context`](concentric_core::Context). The facts are not added to the
/// model's request automatically.
///
/// ```
/// use concentric_core::{ChatRequest, SystemSegment};
/// use concentric_http::ag_ui::AgUiContext;
///
/// fn add_facts(request: &mut ChatRequest) {
///     if let Some(facts) = request.context.extensions().get::<AgUiContext>() {
///         for fact in facts.iter() {
///             let text = format!("{}: {}", fact.description, fact.value);
///             request.system.push(SystemSegment::new(text));
///         }
///     }
/// }
/// # let _ = add_facts;
/// ```
#[derive(Clone, Debug)]
pub struct AgUiContext(Arc<[Context]>);

impl AgUiContext {
    pub(super) fn new(items: Vec<Context>) -> Self {
        Self(items.into())
    }
}

impl Deref for AgUiContext {
    type Target = [Context];

    fn deref(&self) -> &[Context] {
        &self.0
    }
}

/// Application-defined data of the client: the input's `forwardedProps`.
///
/// An extension of the run's [`Context`](concentric_core::Context), if the client sent any. Like
/// all input it is not authenticated, so it must not identify the user.
#[derive(Clone, Debug)]
pub struct AgUiForwardedProps(Arc<Value>);

impl AgUiForwardedProps {
    pub(super) fn new(value: Value) -> Self {
        Self(Arc::new(value))
    }
}

impl Deref for AgUiForwardedProps {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

/// A handle to the state that the agent shares with the client's application.
///
/// An extension of the run's [`Context`](concentric_core::Context); clones share the state. The
/// initial value is the input's `state` (`null` if absent). Each [`update`](Self::update) emits
/// [`Event::State`], in order: the first is sent as `STATE_SNAPSHOT`, later ones as `STATE_DELTA`.
///
/// ```
/// use concentric_core::{ToolCall, ToolOutcome};
/// use concentric_http::ag_ui::AgUiState;
///
/// fn add_to_cart(call: &ToolCall) -> ToolOutcome {
///     let Some(state) = call.context.extensions().get::<AgUiState>() else {
///         return ToolOutcome::failed("This conversation has no cart.");
///     };
///     match state.update(|state| state["items"] = 1.into()) {
///         Ok(_) => ToolOutcome::done("Added."),
///         Err(error) => ToolOutcome::failed(error.to_string()),
///     }
/// }
/// # let _ = add_to_cart;
/// ```
#[derive(Clone)]
pub struct AgUiState(Arc<Inner>);

/// The maximum number of attempts of an update.
const ATTEMPTS: usize = 1024;

struct Inner {
    value: Mutex<Arc<Value>>,
    // A clone from before the state was added to the extensions, to avoid a reference cycle.
    context: concentric_core::Context,
    limit: usize,
}

impl AgUiState {
    pub(super) fn new(value: Value, limit: usize, context: concentric_core::Context) -> Self {
        Self(Arc::new(Inner {
            value: Mutex::new(Arc::new(value)),
            context,
            limit,
        }))
    }

    /// Returns the current state.
    pub fn get(&self) -> Arc<Value> {
        self.lock().clone()
    }

    /// Changes the state and sends the new state to the client.
    ///
    /// `change` receives a copy, which replaces the state atomically. No lock is held while it
    /// runs, so it may use this handle. If the state was changed meanwhile, `change` is called
    /// again with a copy of the newer state: it must have no other effect than the change. An
    /// unchanged state is not sent.
    ///
    /// # Errors
    ///
    /// The new state exceeds the limit
    /// ([`AgUiLayer::state_limit`](super::AgUiLayer::state_limit)), it cannot be sent
    /// ([`Context::emit`](concentric_core::Context::emit)), or the state was changed during each of
    /// 1,024 attempts. This call then leaves the state unchanged.
    pub fn update(&self, mut change: impl FnMut(&mut Value)) -> Result<Arc<Value>, StateError> {
        let mut last = self.get();
        for _ in 0..ATTEMPTS {
            let mut value = Value::clone(&last);
            change(&mut value);
            let is_changed = value != *last;
            if is_changed && json_len(&value, self.0.limit).is_none() {
                return Err(StateError::TooLarge {
                    limit: self.0.limit,
                });
            }
            let value = Arc::new(value);
            let mut state = self.lock();
            if !Arc::ptr_eq(&state, &last) {
                last = state.clone();
                continue;
            }
            if !is_changed {
                return Ok(last);
            }
            // Sent under the lock, so that the last event always has the current state.
            self.0
                .context
                .emit(Event::State(value.clone()))
                .map_err(StateError::NotSent)?;
            *state = value.clone();
            return Ok(value);
        }
        Err(StateError::Contended)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Value>> {
        // The value is replaced in one step, so it is valid even after a panic.
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgUiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgUiState").field(&self.get()).finish()
    }
}

/// Error of [`AgUiState::update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The new state exceeds the limit.
    #[non_exhaustive]
    TooLarge {
        /// The limit, in bytes of JSON.
        limit: usize,
    },
    /// The new state cannot be sent to the client.
    NotSent(EmitError),
    /// The state was changed during each attempt.
    Contended,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => write!(f, "state exceeds the limit of {limit} bytes"),
            Self::NotSent(_) => f.write_str("failed to send the state to the client"),
            Self::Contended => f.write_str(
                "state was changed during each attempt to update it; do not update it in `change`",
            ),
        }
    }
}

impl Error for StateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::TooLarge { .. } | Self::Contended => None,
            Self::NotSent(error) => Some(error),
        }
    }
}

/// The length of `value` as JSON; `None` if it exceeds `limit`.
pub(super) fn json_len(value: &Value, limit: usize) -> Option<usize> {
    struct Count {
        len: usize,
        limit: usize,
    }

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.len = self.len.saturating_add(bytes.len());
            if self.len > self.limit {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count { len: 0, limit };
    serde_json::to_writer(&mut count, value)
        .is_ok()
        .then_some(count.len)
}
