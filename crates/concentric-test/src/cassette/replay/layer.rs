use super::Replay;
use crate::cassette::{
    Redaction,
    canonical::{self, Difference},
    tape::{self, Exchange, Request},
};
use concentric_core::{Error, ErrorKind};
use serde_json::Value;
use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tower_layer::Layer;

/// [`Layer`] that responds from recordings, and never calls the inner service.
///
/// See the [module docs](crate::cassette). Clones, and all services that they make, share the set
/// of unused recordings.
#[derive(Clone)]
pub struct ReplayLayer {
    recorded: Arc<Vec<Recorded>>,
    redaction: Arc<Redaction>,
    ignored: Vec<Vec<String>>,
    reuse: bool,
    pub(super) at_times: bool,
}

struct Recorded {
    exchange: Arc<Exchange>,
    used: AtomicUsize,
}

impl ReplayLayer {
    /// Reads the recordings in the file at `path`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or was not written by a
    /// [`RecordLayer`](crate::cassette::RecordLayer).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let exchanges = tape::read(path.as_ref())?;
        let recorded = exchanges.into_iter().map(|exchange| Recorded {
            exchange: Arc::new(exchange),
            used: AtomicUsize::new(0),
        });
        Ok(Self {
            recorded: Arc::new(recorded.collect()),
            redaction: Arc::default(),
            ignored: Vec::new(),
            reuse: false,
            at_times: false,
        })
    }

    /// Sets the redaction, which must be that of the recorder.
    #[must_use]
    pub fn redaction(mut self, redaction: Redaction) -> Self {
        self.redaction = Arc::new(redaction);
        self
    }

    /// Ignores a part of requests, given as a JSON pointer that begins with `/body`, `/query`,
    /// `/path` or `/method`. `*` matches every field or item, as in `/body/messages/*/name`.
    #[must_use]
    pub fn ignore(mut self, pointer: impl AsRef<str>) -> Self {
        self.ignored.push(canonical::pointer(pointer.as_ref()));
        self
    }

    /// Repeats the last of equal recordings once all of them are used.
    #[must_use]
    pub fn reuse(mut self) -> Self {
        self.reuse = true;
        self
    }

    /// Yields the chunks of a body at their recorded times, if there are any. By default they are
    /// yielded immediately.
    #[must_use]
    pub fn at_times(mut self) -> Self {
        self.at_times = true;
        self
    }

    /// Returns the number of recordings that were not used.
    pub fn unused(&self) -> usize {
        let unused = |recorded: &&Recorded| recorded.used.load(Ordering::SeqCst) == 0;
        self.recorded.iter().filter(unused).count()
    }

    /// Returns the recording that matches `request`, and marks it as used.
    pub(super) fn take(
        &self,
        request: &http::Request<http_body_util::Full<bytes::Bytes>>,
    ) -> Result<Arc<Exchange>, Error> {
        let redaction = self.redaction.of_call(request.headers(), request.uri());
        let request = Request::new(request, &redaction);
        let asked = canonical::of(&request, &self.ignored);
        let mut last = None;
        let mut nearest: Option<(usize, Difference)> = None;
        for (index, recorded) in self.recorded.iter().enumerate() {
            let other = canonical::of(&recorded.exchange.request, &self.ignored);
            let difference = Difference::of(&other, &asked);
            if difference.count > 0 {
                let nearer = nearest
                    .as_ref()
                    .is_none_or(|(_, n)| difference.count < n.count);
                if nearer {
                    nearest = Some((index, difference));
                }
                continue;
            }
            let free = recorded
                .used
                .compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
            if free.is_ok() {
                return Ok(Arc::clone(&recorded.exchange));
            }
            last = Some((index, recorded));
        }
        match last {
            Some((_, recorded)) if self.reuse => {
                recorded.used.fetch_add(1, Ordering::SeqCst);
                Ok(Arc::clone(&recorded.exchange))
            }
            Some((index, _)) => Err(missing(
                &request,
                &format!(
                    "all equal recordings are used, the last in line {}",
                    index + 2
                ),
            )),
            None => Err(missing(&request, &describe(nearest))),
        }
    }
}

fn missing(request: &Request, why: &str) -> Error {
    let Request { method, path, .. } = request;
    Error::new(
        ErrorKind::Configuration,
        format!("no recording matches {method} {path}: {why}"),
    )
    .with_code("no_recording")
}

fn describe(nearest: Option<(usize, Difference)>) -> String {
    let Some((index, difference)) = nearest else {
        return "the cassette is empty".to_owned();
    };
    // The first line is the header.
    let line = index + 2;
    let count = difference.count;
    let Some((pointer, recorded, asked)) = difference.first else {
        return format!("the nearest recording, in line {line}, differs");
    };
    format!(
        "the nearest recording, in line {line}, first differs at {pointer} (1 of {count}): \
         recorded {}, received {}",
        short(recorded.as_ref()),
        short(asked.as_ref())
    )
}

/// Formats a value, truncated to 200 characters.
fn short(value: Option<&Value>) -> String {
    const MOST: usize = 200;
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

impl<S> Layer<S> for ReplayLayer {
    type Service = Replay;

    fn layer(&self, _: S) -> Replay {
        Replay::new(self.clone())
    }
}

impl fmt::Debug for ReplayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayLayer")
            .field("recorded", &self.recorded.len())
            .field("unused", &self.unused())
            .finish_non_exhaustive()
    }
}
