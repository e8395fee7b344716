use std::{
    fmt::Debug,
    mem,
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, NoSubscriber, set_default, set_global_default},
};

/// The warnings and errors that code of one target logs, as lines such as `message=too late`.
///
/// Clones share the lines.
///
/// ```
/// use concentric_test::LogCapture;
///
/// let (log, _guard) = LogCapture::of_thread("my_crate");
/// tracing::warn!(target: "my_crate::socket", port = 80, "no TLS");
/// tracing::warn!(target: "other_crate", "not captured");
/// assert_eq!(log.take(), ["message=no TLS port=80"]);
/// ```
#[derive(Clone, Debug)]
pub struct LogCapture {
    target: &'static str,
    lines: Arc<Mutex<Vec<String>>>,
}

impl LogCapture {
    /// Captures what this thread logs in targets that contain `target`, until the guard is dropped.
    pub fn of_thread(target: &'static str) -> (Self, DefaultGuard) {
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| {
            // If the subscriber of one thread is the only one, tracing consults the thread that first
            // logs at a place, and remembers the answer for all. It fails if the program has set its
            // own subscriber, which serves as well.
            let _ = set_global_default(NoSubscriber::default());
        });
        let log = Self {
            target,
            lines: Arc::default(),
        };
        let guard = set_default(log.clone());
        (log, guard)
    }

    /// Returns and removes the captured lines.
    pub fn take(&self) -> Vec<String> {
        mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().contains(self.target)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lock().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        self.0 += &format!("{space}{}={value:?}", field.name());
    }
}
