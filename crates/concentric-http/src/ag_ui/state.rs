//! What a request's body tells layers and tools, as values in the run's extensions.

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
/// Found in the extensions of the run's [`Context`](concentric_core::Context); nothing shows them
/// to the model by itself.
///
/// ```
/// use concentric_core::{ChatRequest, SystemSegment};
/// use concentric_http::ag_ui::AgUiContext;
///
/// fn tell_the_model(request: &mut ChatRequest) {
///     if let Some(facts) = request.context.extensions().get::<AgUiContext>() {
///         for fact in facts.iter() {
///             let text = format!("{}: {}", fact.description, fact.value);
///             request.system.push(SystemSegment::new(text));
///         }
///     }
/// }
/// # let _ = tell_the_model;
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

/// Whatever the client's application wants to tell the server: the input's `forwardedProps`.
///
/// Found in the extensions of the run's [`Context`](concentric_core::Context), if the client sent
/// any. It is the client's word, as all of the input is: not a place for who the user is.
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

/// The state that the agent shares with the client's application.
///
/// A handle, found in the extensions of the run's [`Context`](concentric_core::Context): clones
/// speak of the same state. It begins as the input's `state` (`null` if there is none). What
/// [`update`](Self::update) makes of it goes out as [`Event::State`], in the order of the updates:
/// the first as `STATE_SNAPSHOT`, later ones as `STATE_DELTA`.
///
/// ```
/// use concentric_core::{ToolCall, ToolOutcome};
/// use concentric_http::ag_ui::AgUiState;
///
/// fn add_to_cart(call: &ToolCall) -> ToolOutcome {
///     let Some(state) = call.context.extensions().get::<AgUiState>() else {
///         return ToolOutcome::failed("There is no cart here.");
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

/// How often an update is tried.
const ATTEMPTS: usize = 1024;

struct Inner {
    value: Mutex<Arc<Value>>,
    // Made before the state was put into its extensions, so it does not hold itself.
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

    /// The state as it is now.
    pub fn get(&self) -> Arc<Value> {
        self.lock().clone()
    }

    /// Changes the state, and shows the client what it has become.
    ///
    /// `change` works on a copy, which replaces the state when it returns; two updates never mix. No
    /// lock is held while it runs, so it may use this state itself. If the state was changed
    /// meanwhile, also by `change`, it is called again with a copy of the newer one: it must have no
    /// other effect than the change. Nothing is sent if nothing has changed.
    ///
    /// # Errors
    ///
    /// The state would be too large ([`AgUiLayer::state_limit`](super::AgUiLayer::state_limit)),
    /// it cannot be sent ([`Context::emit`](concentric_core::Context::emit)), or it was changed by
    /// others, or by `change` itself, each of the 1,024 times that `change` ran. It then is not
    /// changed by this call.
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
            // Under the lock: what is sent last is what the state is.
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
        // Nothing that can panic is done between two changes of the value.
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgUiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgUiState").field(&self.get()).finish()
    }
}

/// Why the state was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// It would be larger than the limit.
    #[non_exhaustive]
    TooLarge {
        /// The limit, in bytes of JSON.
        limit: usize,
    },
    /// It cannot be sent to the client.
    NotSent(EmitError),
    /// It was changed meanwhile, each time that it was tried.
    Contended,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => write!(f, "the state would be larger than {limit} bytes"),
            Self::NotSent(_) => f.write_str("the state cannot be sent"),
            Self::Contended => f.write_str(
                "the state was changed during each attempt to update it, do not update it in `change`",
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

/// The length of `value` as JSON; `None` if it is more than `limit`.
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
