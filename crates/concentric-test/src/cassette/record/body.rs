use super::call::Call;
use crate::cassette::tape::End;
use bytes::Bytes;
use concentric_core::BoxError;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response body for [`Record`](super::Record).
    pub struct RecordBody<RB> {
        #[pin]
        inner: RB,
        // `None` once the call is over.
        call: Option<Call>,
    }
}

impl<RB> RecordBody<RB>
where
    RB: Body,
{
    pub(super) fn new(inner: RB, mut call: Option<Call>) -> Self {
        if inner.is_end_stream() {
            end(&mut call);
        }
        Self { inner, call }
    }
}

fn end(call: &mut Option<Call>) {
    if let Some(mut call) = call.take() {
        call.end(End::Finished);
    }
}

impl<RB> Body for RecordBody<RB>
where
    RB: Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                if let (Some(call), Some(piece)) = (&mut *this.call, frame.data_ref()) {
                    call.piece(piece);
                }
                // The consumer may not poll again.
                if this.inner.is_end_stream() {
                    end(this.call);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                let error = error.into();
                if let Some(mut call) = this.call.take() {
                    call.fail(&error);
                }
                Some(Err(error))
            }
            None => {
                end(this.call);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<RB> fmt::Debug for RecordBody<RB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBody")
            .field("ended", &self.call.is_none())
            .finish_non_exhaustive()
    }
}
