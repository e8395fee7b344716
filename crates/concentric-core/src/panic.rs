//! Catches panics of user code: hooks, gates, tools and stores.

use concentric_proto::{Error, ErrorKind, Str, ToolOutcome};
use std::{
    any::Any,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

/// The payload of a caught panic.
pub struct CaughtPanic(Box<dyn Any + Send>);

impl CaughtPanic {
    /// Returns the message of the panic, if it is text; for the log.
    pub fn text(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<&str>().copied();
        text.or_else(|| self.0.downcast_ref::<String>().map(String::as_str))
    }

    /// Converts the panic of a hook into an error.
    pub fn error(&self) -> Error {
        let text = self.text().unwrap_or("(no message)");
        Error::new(ErrorKind::Other, format!("panicked: {text}"))
    }

    /// Converts the panic of `tool` or of one of its layers into the call's outcome. The message of
    /// the panic is only logged.
    pub fn outcome(&self, tool: &str) -> ToolOutcome {
        let text = self.text();
        // Not within the current span, into which its exporter would copy the text.
        tracing::error!(parent: None, tool, panic = text, "a tool or one of its layers panicked");
        ToolOutcome::failed(Str::from_static("The tool failed unexpectedly."))
    }
}

impl fmt::Debug for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CaughtPanic").field(&self.text()).finish()
    }
}

/// Runs `work` and catches a panic.
///
/// State that a panicking `work` leaves behind must only be dropped, not used again.
///
/// # Errors
///
/// The closure panicked.
#[inline(always)]
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(CaughtPanic)
}

/// Calls a method and waits for it. Panics of both, and of the future's drop, are caught.
///
/// # Errors
///
/// The method panicked, or its future did when it was polled.
pub async fn caught<F>(method: impl FnOnce() -> F) -> Result<F::Output, CaughtPanic>
where
    F: Future,
{
    let mut future = pin!(Some(catch(method)?));
    let output = poll_fn(|cx| {
        let polled = catch(|| future.as_mut().as_pin_mut().map(|f| f.poll(cx)));
        match polled {
            Ok(None | Some(Poll::Pending)) => Poll::Pending,
            Ok(Some(Poll::Ready(output))) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await;
    // A panic of the drop does not change the output.
    let _ = catch(|| future.set(None));
    output
}
