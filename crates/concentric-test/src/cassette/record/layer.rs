use super::{Record, call::Call};
use crate::cassette::{
    Redaction,
    tape::{self, Exchange, Request},
};
use bytes::Bytes;
use http_body_util::Full;
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tower_layer::Layer;

/// [`Layer`] that records the requests and responses of an HTTP service.
///
/// See the [module docs](crate::cassette). Clones, and all services that they make, write to the
/// same file, and replace its former content.
///
/// The file is written synchronously when a call ends, so this layer is only suitable for tests.
#[derive(Clone)]
pub struct RecordLayer {
    tape: Arc<Tape>,
    redaction: Arc<Redaction>,
    times: bool,
}

/// The recordings of one file.
pub(super) struct Tape {
    path: PathBuf,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    // One for each call, empty until the call ends.
    lines: Vec<String>,
    failure: Option<io::Error>,
}

impl RecordLayer {
    /// Creates a layer that records into the file at `path`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            tape: Arc::new(Tape {
                path: path.as_ref().to_owned(),
                recorded: Mutex::default(),
            }),
            redaction: Arc::default(),
            times: false,
        }
    }

    /// Sets the parts of requests and responses that are not recorded.
    #[must_use]
    pub fn redaction(mut self, redaction: Redaction) -> Self {
        self.redaction = Arc::new(redaction);
        self
    }

    /// Also records the arrival time of each chunk of a body.
    #[must_use]
    pub fn times(mut self) -> Self {
        self.times = true;
        self
    }

    /// Writes the file, which also happens automatically when a call ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written, or could not be written when a call ended.
    pub fn save(&self) -> io::Result<()> {
        let mut recorded = self
            .tape
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match recorded.failure.take() {
            Some(failure) => Err(failure),
            None => self.tape.write(&recorded.lines),
        }
    }

    pub(super) fn call(&self, request: &http::Request<Full<Bytes>>) -> Call {
        let redaction = self.redaction.of_call(request.headers(), request.uri());
        let request = Request::new(request, &redaction);
        let mut recorded = self
            .tape
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        recorded.lines.push(String::new());
        let index = recorded.lines.len() - 1;
        drop(recorded);
        Call::new(
            Arc::clone(&self.tape),
            index,
            redaction,
            self.times,
            request,
        )
    }
}

impl Tape {
    /// Records the end of a call.
    pub(super) fn end(&self, index: usize, exchange: &Exchange) {
        let line = serde_json::to_string(exchange);
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let written = line.map_err(io::Error::from).and_then(|line| {
            if let Some(place) = recorded.lines.get_mut(index) {
                *place = line;
            }
            self.write(&recorded.lines)
        });
        if let Err(failure) = written {
            recorded.failure.get_or_insert(failure);
        }
    }

    fn write(&self, lines: &[String]) -> io::Result<()> {
        let over = lines.iter().filter(|line| !line.is_empty());
        tape::write(&self.path, over.map(String::as_str))
    }
}

impl<S> Layer<S> for RecordLayer {
    type Service = Record<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Record::new(inner, self.clone())
    }
}

impl fmt::Debug for RecordLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordLayer")
            .field("path", &self.tape.path)
            .field("redaction", &self.redaction)
            .field("times", &self.times)
            .finish()
    }
}
