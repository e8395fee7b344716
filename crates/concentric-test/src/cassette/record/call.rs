use super::layer::Tape;
use crate::cassette::{
    Redaction,
    tape::{Content, End, Exchange, Request, Response, is_encoded},
};
use bytes::Bytes;
use concentric_core::{BoxError, Error};
use http::response::Parts;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Larger bodies are not recorded.
const MOST: usize = 64 * 1024 * 1024;

/// The state of a call in progress. It is recorded once, when the call ends or is dropped.
pub(super) struct Call {
    tape: Arc<Tape>,
    index: usize,
    redaction: Redaction,
    // The start of the call, if times are recorded.
    since: Option<Instant>,
    // `None` once the call has ended.
    request: Option<Request>,
    response: Option<Response>,
    body: Vec<u8>,
    lost: Option<&'static str>,
}

impl Call {
    pub(super) fn new(
        tape: Arc<Tape>,
        index: usize,
        redaction: Redaction,
        times: bool,
        request: Request,
    ) -> Self {
        Self {
            tape,
            index,
            redaction,
            since: times.then(Instant::now),
            request: Some(request),
            response: None,
            body: Vec::new(),
            lost: None,
        }
    }

    pub(super) fn head(&mut self, parts: &Parts) {
        if is_encoded(&parts.headers) {
            self.lost = Some("the body is compressed and cannot be searched for secrets");
        }
        self.response = Some(Response {
            status: parts.status.as_u16(),
            headers: self.redaction.headers(&parts.headers),
            body: Content::Text(String::new()),
            cuts: Vec::new(),
            times: Vec::new(),
        });
    }

    pub(super) fn piece(&mut self, piece: &Bytes) {
        let Some(response) = &mut self.response else {
            return;
        };
        if self.lost.is_some() {
            return;
        }
        if self.body.len() + piece.len() > MOST {
            self.lost = Some("the body exceeds the limit of 64 MiB");
            self.body = Vec::new();
            return;
        }
        self.body.extend_from_slice(piece);
        response.cuts.push(self.body.len());
        if let Some(since) = self.since {
            response.times.push(millis(since.elapsed()));
        }
    }

    pub(super) fn fail(&mut self, error: &BoxError) {
        let error = Error::of(&**error);
        let message = self.redaction.text(error.message());
        self.end(End::Failed {
            kind: error.kind(),
            message,
        });
    }

    pub(super) fn end(&mut self, end: End) {
        let Some(request) = self.request.take() else {
            return;
        };
        let mut response = self.response.take();
        let body = std::mem::take(&mut self.body);
        if let Some(response) = &mut response {
            if self.lost.is_some() {
                response.cuts = Vec::new();
                response.times = Vec::new();
            }
            let (body, cuts) = self.redaction.bytes(&body, &response.cuts);
            response.body = Content::text(body);
            response.cuts = cuts;
        }
        let end = match self.lost {
            Some(reason) => End::Lost(reason.to_owned()),
            None => end,
        };
        let exchange = Exchange {
            request,
            response,
            end,
        };
        self.tape.end(self.index, &exchange);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

fn millis(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
