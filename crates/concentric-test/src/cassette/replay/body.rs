use bytes::Bytes;
use concentric_core::Error;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep};

/// Response body for [`Replay`](super::Replay), with the recorded chunks and the recorded end.
pub struct ReplayBody {
    // Each with the time at which it is yielded, if times are replayed.
    pieces: VecDeque<(Option<Instant>, Bytes)>,
    end: Option<Error>,
    // Boxed so that the body is `Unpin`.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl ReplayBody {
    pub(super) fn new(pieces: Vec<Bytes>, times: &[u64], end: Option<Error>) -> Self {
        let mut times = times
            .iter()
            .map(|millis| Instant::now().checked_add(Duration::from_millis(*millis)));
        Self {
            pieces: pieces
                .into_iter()
                .map(|piece| (times.next().flatten(), piece))
                .collect(),
            end,
            sleep: None,
        }
    }
}

impl Body for ReplayBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if let Some((Some(time), _)) = this.pieces.front() {
            let sleep = &mut this.sleep;
            let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(*time)));
            ready!(sleep.as_mut().poll(cx));
            this.sleep = None;
        }
        Poll::Ready(match this.pieces.pop_front() {
            Some((_, piece)) => Some(Ok(Frame::data(piece))),
            None => this.end.take().map(Err),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.end.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self
            .pieces
            .iter()
            .map(|(_, piece)| piece.len() as u64)
            .sum();
        match self.end {
            None => SizeHint::with_exact(length),
            Some(_) => SizeHint::new(),
        }
    }
}

impl fmt::Debug for ReplayBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}
