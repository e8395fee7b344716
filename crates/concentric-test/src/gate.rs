use std::sync::Arc;
use tokio::sync::watch;

/// A barrier that blocks a test double until the test opens it.
///
/// Clones share one state. An open gate stays open.
///
/// ```
/// use concentric_core::ChatRequest;
/// use concentric_test::{Gate, ScriptedModel};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), concentric_core::Error> {
/// let gate = Gate::new();
/// let model = ScriptedModel::new().text("Well,").wait(&gate).text(" yes.");
///
/// let answer = model.oneshot(ChatRequest::user("hi")).await?; // the first text has arrived
/// let text = tokio::spawn(answer.text());
/// gate.reached().await;
/// assert!(!text.is_finished());
/// gate.open();
/// assert_eq!(text.await.expect("no panic")?, "Well, yes.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    open: watch::Sender<bool>,
    reached: watch::Sender<usize>,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self {
            state: Arc::new(State {
                open: watch::Sender::new(false),
                reached: watch::Sender::new(0),
            }),
        }
    }

    /// Opens the gate for all current and later waiters.
    pub fn open(&self) {
        self.state.open.send_replace(true);
    }

    /// Returns `true` if the gate is open.
    pub fn is_open(&self) -> bool {
        *self.state.open.borrow()
    }

    /// Waits until the gate has been reached once.
    pub async fn reached(&self) {
        self.reached_times(1).await;
    }

    /// Waits until the gate has been reached `times` times.
    pub async fn reached_times(&self, times: usize) {
        let mut reached = self.state.reached.subscribe();
        // `self` holds the sender, so the channel is never closed.
        let _ = reached.wait_for(|count| *count >= times).await;
    }

    /// Reaches the gate, and waits until it is open.
    pub async fn pass(&self) {
        self.state.reached.send_modify(|count| *count += 1);
        let mut open = self.state.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
