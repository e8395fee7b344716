use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::gate::Permit;

pin_project! {
    /// Response body for [`Admission`](super::Admission): the unchanged frames of the inner body,
    /// or the error response of a rejected request.
    #[must_use = "bodies do nothing unless polled"]
    pub struct AdmissionBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<B> {
        Admitted {
            #[pin]
            inner: B,
            // Released at the end, on an error, or on drop.
            permit: Option<Permit>,
        },
        Refused {
            bytes: Option<Bytes>,
        },
    }
}

impl<B> AdmissionBody<B> {
    pub(super) const fn admitted(inner: B, permit: Option<Permit>) -> Self {
        Self {
            kind: Kind::Admitted { inner, permit },
        }
    }

    pub(super) const fn refused(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Refused { bytes: Some(bytes) },
        }
    }
}

impl<B> Body for AdmissionBody<B>
where
    B: Body<Data: From<Bytes>>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            KindProj::Admitted { inner, permit } => {
                let frame = ready!(inner.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *permit = None;
                }
                Poll::Ready(frame)
            }
            KindProj::Refused { bytes } => {
                let bytes = bytes.take();
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Admitted { inner, .. } => inner.is_end_stream(),
            Kind::Refused { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Admitted { inner, .. } => inner.size_hint(),
            Kind::Refused { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B> fmt::Debug for AdmissionBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionBody").finish_non_exhaustive()
    }
}
