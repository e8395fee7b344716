//! Reading of request bodies, and the head of an event stream.

use std::{
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use concentric_core::context::{Clock, Sleep};
use http::{HeaderMap, HeaderValue, header};
use http_body::Body;
use tower::BoxError;

use crate::refused::Refused;

/// Checks the content type and the announced size of a request before its body is read.
pub(crate) fn check<RB: Body>(request: &http::Request<RB>, limit: usize) -> Result<(), Refused> {
    if !is_json(request.headers()) {
        return Err(Refused::media_type());
    }
    let len = request.body().size_hint().lower();
    if usize::try_from(len).map_or(true, |len| len > limit) {
        return Err(Refused::too_large(Some(limit)));
    }
    Ok(())
}

/// Returns whether the content type is `application/json` or another JSON type.
///
/// A request without a content type is rejected: a page of another origin can send one with the
/// user's cookies and without a preflight request.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    let Some((_, subtype)) = essence.split_once('/') else {
        return false;
    };
    let suffix = subtype.rsplit('+').next().unwrap_or_default();
    suffix.eq_ignore_ascii_case("json")
}

/// Resolves when the upload times out.
pub(crate) fn poll_timeout(
    timeout: &mut Option<Sleep>,
    clock: &dyn Clock,
    limit: Option<Duration>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Some(limit) = limit else {
        return Poll::Pending;
    };
    let timeout = timeout.get_or_insert_with(|| clock.sleep(limit));
    timeout.as_mut().poll(cx)
}

/// Reads `body` to its end, up to `limit` bytes.
pub(crate) fn poll_read<RB>(
    mut body: Pin<&mut RB>,
    bytes: &mut BytesMut,
    limit: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Refused>>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    loop {
        match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => {
                // Trailers are ignored.
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if data.remaining() > limit.saturating_sub(bytes.len()) {
                    return Poll::Ready(Err(Refused::too_large(Some(limit))));
                }
                bytes.put(data);
            }
            Some(Err(error)) => {
                let error = error.into();
                return Poll::Ready(Err(if is_limit(&*error) {
                    Refused::too_large(None)
                } else {
                    Refused::unreadable()
                }));
            }
            None => return Poll::Ready(Ok(())),
        }
    }
}

/// Returns whether the limit of an outer layer was exceeded, such as that of tower-http.
fn is_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut link = Some(error);
    while let Some(error) = link {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        link = error.source();
    }
    false
}

/// The response with the event stream `body`.
pub(crate) fn event_stream<B>(body: B) -> http::Response<B> {
    let mut response = http::Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Otherwise nginx buffers the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
