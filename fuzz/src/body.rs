use bytes::Bytes;
use http_body::{Body, Frame};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

/// A body in pieces, with a pause before each.
#[derive(Clone, Debug)]
pub struct Cut {
    pieces: VecDeque<Bytes>,
    broken: bool,
    paused: bool,
}

impl Cut {
    /// Creates a body in one piece.
    pub fn whole(bytes: Bytes) -> Self {
        Self {
            pieces: [bytes].into(),
            broken: false,
            paused: false,
        }
    }

    /// Creates a body in pieces as long as `lengths` say, again and again; after a length of 0
    /// comes nothing, and then one byte. No lengths make one piece.
    pub fn new(mut bytes: Bytes, lengths: &[u8]) -> Self {
        let mut cut = Self::whole(Bytes::new());
        if lengths.is_empty() {
            return Self::whole(bytes);
        }
        for length in lengths.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            if *length == 0 {
                cut.pieces.push_back(Bytes::new());
            }
            let length = usize::from(*length).clamp(1, bytes.len());
            cut.pieces.push_back(bytes.split_to(length));
        }
        cut
    }

    /// Has the connection break at the end.
    #[must_use]
    pub const fn breaks(mut self, breaks: bool) -> Self {
        self.broken = breaks;
        self
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl Body for Cut {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.paused = !self.paused;
        if self.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(match self.pieces.pop_front() {
            Some(piece) => Some(Ok(Frame::data(piece))),
            None if self.broken => Some(Err(io::ErrorKind::ConnectionReset.into())),
            None => None,
        })
    }
}
