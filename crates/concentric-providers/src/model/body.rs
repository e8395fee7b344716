use super::{
    clocks::Clocks,
    input::{Input, Progress, truncated},
};
use crate::api::{Answer, Api, Decoder};
use bytes::Bytes;
use concentric_core::{BoxError, Error, ErrorKind, Event, ResponseHead, Usage};
use futures_core::Stream;
use http::HeaderMap;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Response body of [`Model`](super::Model): the events of one response.
///
/// # Cancel safety
///
/// Dropping the body drops the HTTP body, which ends the request; the provider then stops
/// generating.
#[must_use = "streams do nothing unless polled"]
pub struct Body<RB, A: Api> {
    // Boxed once per call, since the future reads from the body before it returns it, and a pinned
    // body cannot be moved out of the future. This also makes `Body` `Unpin`. `None` after the last
    // read.
    upstream: Option<Pin<Box<RB>>>,
    upstream_ended: bool,
    input: Input,
    decoder: A::Decoder,
    answer: Answer,
    received: usize,
    clocks: Option<Box<Clocks>>,
    // Emitted after the remaining `answer.events`.
    error: Option<Error>,
}

impl<RB, A: Api> Body<RB, A> {
    pub(super) fn new(
        upstream: Pin<Box<RB>>,
        clocks: Option<Box<Clocks>>,
        headers: &HeaderMap,
        answer: Answer,
        decoder: A::Decoder,
    ) -> Self {
        Self {
            upstream: Some(upstream),
            upstream_ended: false,
            input: Input::new(headers),
            decoder,
            answer,
            received: 0,
            clocks,
            error: None,
        }
    }

    pub(super) fn head(&self) -> &ResponseHead {
        &self.answer.head
    }
}

impl<RB, A> Body<RB, A>
where
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
    A: Api,
{
    /// Waits for the first content or the end of the response.
    pub(super) fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if self.answer.events.iter().any(Event::is_content) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = self.error.take() {
                return Poll::Ready(Err(error));
            }
            if self.upstream.is_none() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_chunk(cx));
        }
    }

    /// Processes the next chunk, or reads more bytes.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let events = self.answer.events.len();
        let progress = self
            .input
            .next(&mut self.decoder, &mut self.answer, self.upstream_ended);
        match progress {
            Ok(Progress::Chunk) => {
                if let Some(clocks) = &mut self.clocks
                    && (std::mem::take(&mut self.answer.changed)
                        || self.answer.events.len() > events)
                {
                    clocks.progress();
                }
            }
            Ok(Progress::More) => {
                if let Err(error) = ready!(self.poll_bytes(cx)) {
                    self.fail(error);
                }
            }
            Ok(Progress::End) => self.close(cx),
            Err(error) => self.fail(error),
        }
        Poll::Ready(())
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(upstream) = &mut self.upstream else {
            return Poll::Ready(Ok(()));
        };
        let origin = self.answer.origin();
        let polled = Clocks::poll(&mut self.clocks, cx, |cx| upstream.as_mut().poll_frame(cx));
        let frame = match ready!(polled) {
            Ok(Some(Ok(frame))) => Ok(Some(frame)),
            Ok(None) => Ok(None),
            // An error or a timeout after the service's terminal event is ignored.
            _ if self.decoder.is_whole() => Ok(None),
            Ok(Some(Err(error))) => Err(origin.transport(error.into())),
            Err(expired) => Err(expired.error(origin)),
        };
        let Some(frame) = frame? else {
            self.upstream_ended = true;
            return Poll::Ready(self.input.push(None, &self.answer));
        };
        let Ok(bytes) = frame.into_data() else {
            return Poll::Ready(Ok(()));
        };
        if let Some(clocks) = &mut self.clocks
            && !bytes.is_empty()
        {
            clocks.byte();
        }
        self.received = self.received.saturating_add(bytes.len());
        if self.received > self.answer.limits.response {
            let what = "the response is larger than the limit";
            return Poll::Ready(Err(self.answer.origin().error(ErrorKind::TooLarge, what)));
        }
        Poll::Ready(self.input.push(Some(bytes), &self.answer))
    }

    /// Ends the response.
    fn close(&mut self, cx: &mut Context<'_>) {
        if let Some(upstream) = &mut self.upstream
            && !self.upstream_ended
        {
            // The end of the body has usually arrived by now. A client can reuse the connection
            // after it has been polled.
            let _ = upstream.as_mut().poll_frame(cx);
        }
        self.upstream = None;
        let closed = match self.decoder.is_whole() {
            true => self.decoder.close(&mut self.answer),
            false => Err(truncated(&self.answer)),
        };
        if let Err(error) = closed {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: Error) {
        self.upstream = None;
        // A service that fails before its first output charges nothing.
        self.record(false);
        self.error = Some(error);
    }
}

impl<RB, A> Stream for Body<RB, A>
where
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
    A: Api,
{
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.answer.events.pop_front() {
                this.answer.estimate.see(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if this.upstream.is_none() {
                return Poll::Ready(None);
            }
            ready!(this.poll_chunk(cx));
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let known = self.answer.events.len() + usize::from(self.error.is_some());
        (known, self.upstream.is_none().then_some(known))
    }
}

impl<RB, A: Api> Body<RB, A> {
    /// Records the tokens of a response that is not complete: it is charged, also if it is repeated.
    fn record(&mut self, is_charged: bool) {
        let Answer {
            events, estimate, ..
        } = &mut self.answer;
        // The others were counted when they were polled.
        events.iter().for_each(|event| estimate.see(event));
        let (seen, reported) = (estimate.output(), self.decoder.usage());
        if reported.output_tokens() >= Some(seen) {
            self.answer
                .context
                .record_usage(&self.answer.head, reported);
        } else if is_charged || seen > 0 || reported != Usage::default() {
            self.answer.record_estimate(reported);
        }
    }
}

impl<RB, A: Api> Drop for Body<RB, A> {
    fn drop(&mut self) {
        // Dropped before its end.
        if self.upstream.take().is_some() {
            self.record(true);
        }
    }
}

impl<RB, A: Api> fmt::Debug for Body<RB, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("head", self.head())
            .field("received", &self.received)
            .field("ended", &self.upstream.is_none())
            .finish_non_exhaustive()
    }
}
