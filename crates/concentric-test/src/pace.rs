use concentric_core::{Context, Custom, Event};
use serde_json::Value;
use std::{
    future::{Future, ready},
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// When a test double is ready.
///
/// A double that answers at once hides what a loop does while it waits. Run each scenario in which
/// something waits for something else at [each pace](Self::ALL):
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
    /// At its first poll.
    #[default]
    AtOnce,
    /// Once the executor has run another task: a loop that does not return to it waits for ever.
    NextTick,
    /// The same, after it has emitted an event named [`PACE`] into its run.
    AfterEvent,
}

/// The name of the event that [`Pace::AfterEvent`] emits.
pub const PACE: &str = "pace";

impl Pace {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AtOnce, Self::NextTick, Self::AfterEvent];

    /// Waits as long as this pace does, in the run of `context`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, unless the pace is [`AtOnce`](Self::AtOnce).
    pub async fn pass(self, context: &Context) {
        if self == Self::AtOnce {
            return;
        }
        if self == Self::AfterEvent {
            // The run may have ended, which the double need not know.
            let _ = context.emit(Event::Custom(Box::new(Custom::new(PACE, Value::Null))));
        }
        // `yield_now` would be ready at the second poll, whether or not the executor had its turn.
        let _ = tokio::spawn(ready(())).await;
    }
}

/// How long [`watched`] waits.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `test` on a current-thread runtime in a thread of its own.
///
/// # Panics
///
/// If `test` panics, or has not finished after a minute of wall time, as when it spins; its thread
/// is then left behind.
#[track_caller]
#[expect(clippy::panic, reason = "an assertion")]
pub fn watched<F>(test: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let _ = done.send(runtime.block_on(test));
    });
    match ended.recv_timeout(LIMIT) {
        Ok(output) => output,
        Err(RecvTimeoutError::Timeout) => panic!("the test has not finished after {LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => panic!("the test's thread ended without a result"),
        },
    }
}
