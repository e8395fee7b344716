//! Values of the request body in the extensions of the run.

use std::{
    error::Error,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use concentric_core::{EmitError, Event};
use serde_json::Value;

use super::{Context, edit::Edit};

/// Data that the client's application sends to the agent, an extension of the run's
/// [`Context`](concentric_core::Context).
///
/// The model's request does not contain this data. Clients may send any value, so the data must not
/// identify the user.
///
/// ```
/// use concentric_core::{ChatRequest, SystemSegment};
/// use concentric_http::ag_ui::AgUiContext;
///
/// fn add_facts(request: &mut ChatRequest) {
///     if let Some(sent) = request.context.extensions().get::<AgUiContext>() {
///         for fact in sent.items.iter() {
///             let text = format!("{}: {}", fact.description, fact.value);
///             request.system.push(SystemSegment::new(text));
///         }
///     }
/// }
/// # let _ = add_facts;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgUiContext {
    /// Facts: the input's `context`.
    pub items: Arc<[Context]>,
    /// Application-defined data: the input's `forwardedProps`.
    pub forwarded_props: Option<Arc<Value>>,
}

/// A handle to the state that the agent shares with the client's application.
///
/// An extension of the run's [`Context`](concentric_core::Context); clones share the state. The
/// initial value is the input's `state` (`null` if absent). Each change emits [`Event::State`]: the
/// first is sent as `STATE_SNAPSHOT`, later ones as `STATE_DELTA` where that is shorter. Changes that
/// follow one another before the client's stream is written are sent as one.
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
///
/// [`update`](Self::update) copies and compares the whole state. For a large state,
/// [`update_at`](Self::update_at) copies and compares only the value at a path:
///
/// ```
/// # fn count(state: &concentric_http::ag_ui::AgUiState) -> Result<(), concentric_http::ag_ui::StateError> {
/// state.update_at("/cart/items", |items| *items = (items.as_u64().unwrap_or(0) + 1).into())?;
/// # Ok(())
/// # }
/// # let _ = count;
/// ```
#[derive(Clone)]
pub struct AgUiState(Arc<Inner>);

/// The maximum number of attempts of an update.
const ATTEMPTS: usize = 1024;

struct Inner {
    current: Mutex<Current>,
    // A clone from before the state was added to the extensions, to avoid a reference cycle.
    context: concentric_core::Context,
    limit: usize,
}

struct Current {
    // Changed in place unless it is shared.
    value: Arc<Value>,
    // The number of changes.
    version: u64,
    // The length as JSON; computed at the first change, since most runs change nothing.
    len: Option<usize>,
}

impl AgUiState {
    pub(crate) fn new(value: Value, limit: usize, context: concentric_core::Context) -> Self {
        Self(Arc::new(Inner {
            current: Mutex::new(Current {
                value: Arc::new(value),
                version: 0,
                len: None,
            }),
            context,
            limit,
        }))
    }

    /// Returns the current state.
    ///
    /// While the returned value exists, the next update copies the whole state.
    pub fn get(&self) -> Arc<Value> {
        self.lock().value.clone()
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
    /// ([`AgUiLayer::state_limit`](crate::ag_ui::AgUiLayer::state_limit)), it cannot be sent
    /// ([`Context::emit`](concentric_core::Context::emit)), or the state was changed during each of
    /// 1,024 attempts. This call then leaves the state unchanged.
    pub fn update(&self, change: impl FnMut(&mut Value)) -> Result<Arc<Value>, StateError> {
        self.update_at("", change)
    }

    /// Changes the value at `path`, a JSON Pointer (RFC 6901), as [`update`](Self::update) changes
    /// the whole state.
    ///
    /// A missing value is `null` for `change`, and is added with the objects around it. The
    /// index `-` appends to a list.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update); or the path leads through a value that is neither an object
    /// nor `null`, or to an element that a list does not have.
    pub fn update_at(
        &self,
        path: &str,
        mut change: impl FnMut(&mut Value),
    ) -> Result<Arc<Value>, StateError> {
        let limit = self.0.limit;
        for _ in 0..ATTEMPTS {
            let (last, version, len) = {
                let current = self.lock();
                (current.value.clone(), current.version, current.len)
            };
            let old = last.pointer(path).unwrap_or(&Value::Null);
            let mut new = old.clone();
            change(&mut new);
            if *old == new {
                match self.lock().version == version {
                    true => return Ok(last),
                    false => continue,
                }
            }
            let edit = Edit::new(&last, path, new).ok_or(StateError::NoSuchPath)?;
            let len = edit.len(&last, len, limit);
            let len = len.ok_or(StateError::TooLarge { limit })?;
            // So that the state can be changed in place.
            drop(last);
            let mut current = self.lock();
            if current.version != version {
                continue;
            }
            return self.apply(&mut current, edit, len);
        }
        Err(StateError::Contended)
    }

    /// Applies `edit` and emits the new state, or leaves the state unchanged.
    fn apply(
        &self,
        current: &mut Current,
        edit: Edit<'_>,
        len: usize,
    ) -> Result<Arc<Value>, StateError> {
        // Otherwise the state would be copied for the sake of an event that the next one replaces.
        drop(self.0.context.take_emitted_state());
        let undo = edit.apply(Arc::make_mut(&mut current.value));
        // Emitted under the lock, so that the last event always has the current state.
        let event = Event::State(current.value.clone());
        if let Err(error) = self.0.context.emit(event) {
            undo.apply(Arc::make_mut(&mut current.value));
            return Err(StateError::NotSent(error));
        }
        current.version += 1;
        current.len = Some(len);
        Ok(current.value.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        // No foreign code runs under the lock, so the state is valid even after a panic.
        self.0
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgUiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgUiState").field(&self.get()).finish()
    }
}

/// Error of an update of [`AgUiState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The new state exceeds the limit.
    #[non_exhaustive]
    TooLarge {
        /// The limit, in bytes of JSON.
        limit: usize,
    },
    /// The state has no such path, and it cannot be added.
    NoSuchPath,
    /// The new state cannot be sent to the client.
    NotSent(EmitError),
    /// The state was changed during each attempt.
    Contended,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => write!(f, "state exceeds the limit of {limit} bytes"),
            Self::NoSuchPath => {
                f.write_str("state has no value at the path, and none can be added")
            }
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
            Self::TooLarge { .. } | Self::NoSuchPath | Self::Contended => None,
            Self::NotSent(error) => Some(error),
        }
    }
}
