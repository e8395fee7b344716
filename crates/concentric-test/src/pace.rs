use concentric_core::{Context, CustomEvent, Event};
use serde_json::Value;
use std::{
    future::{Future, ready},
    panic::resume_unwind,
    pin::Pin,
    sync::mpsc::{RecvTimeoutError, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// The point at which a test double becomes ready.
///
/// A double that is ready at its first poll hides the behaviour of a loop while it waits. Run each
/// scenario that waits at [each pace](Self::ALL):
///
/// ```
/// use concentric_core::{AgentLayer, ChatRequest, ToolOutcome};
/// use concentric_test::{Pace, ScriptedModel, ScriptedTools, watched};
/// use tower::{Layer, ServiceExt};
///
/// for pace in Pace::ALL {
///     let text = watched(async move {
///         let tools = ScriptedTools::new().tool("look", move |call| async move {
///             pace.pass(&call.context).await;
///             ToolOutcome::done("42")
///         });
///         let model = ScriptedModel::new().paced(pace).tool_call("look", "{}");
///         let model = model.then().text("It is 42.");
///         let agent = AgentLayer::new(tools).layer(model);
///         agent.oneshot(ChatRequest::user("Look.")).await?.text().await
///     });
///     assert_eq!(text.unwrap(), "It is 42.");
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Ready at the first poll.
    #[default]
    AtOnce,
    /// Ready once the executor has run another task. A loop that does not yield to it never ends.
    NextTick,
    /// Like [`NextTick`](Self::NextTick), after emitting an event named [`PACE`] into the run.
    AfterEvent,
}

/// The name of the event that [`Pace::AfterEvent`] emits.
pub const PACE: &str = "pace";

impl Pace {
    /// All paces.
    pub const ALL: [Self; 3] = [Self::AtOnce, Self::NextTick, Self::AfterEvent];

    /// Waits according to this pace, in the run of `context`.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, unless the pace is [`AtOnce`](Self::AtOnce).
    pub async fn pass(self, context: &Context) {
        if self == Self::AtOnce {
            return;
        }
        if self == Self::AfterEvent {
            // The run may have ended, which does not matter to the double.
            let _ = context.emit(Event::Custom(Box::new(CustomEvent::new(PACE, Value::Null))));
        }
        // `yield_now` would be ready at the second poll even if no other task ran.
        let _ = tokio::spawn(ready(())).await;
    }
}

/// The time limit of [`watched`].
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `test` on a current-thread runtime in a thread of its own, with a limit of 60 seconds of
/// wall time.
///
/// # Panics
///
/// Panics if `test` panics or exceeds the limit, as a busy loop does. Its thread is then leaked.
#[track_caller]
#[expect(clippy::panic, reason = "an assertion")]
pub fn watched<F>(test: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, ended) = channel();
    let thread = start(Box::pin(async move {
        let _ = done.send(test.await);
    }));
    match ended.recv_timeout(LIMIT) {
        Ok(output) => output,
        Err(RecvTimeoutError::Timeout) => panic!("the test has not finished after {LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => panic!("the test's thread ended without a result"),
        },
    }
}

/// Runs `work` in a thread. Without its type, since a runtime takes long to compile for each.
fn start(work: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        runtime.block_on(work);
    })
}
