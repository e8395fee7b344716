use super::{ReplayBody, ReplayLayer};
use crate::cassette::tape::{End, Exchange, Response};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::Full;
use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};
use tower_service::Service;

/// An HTTP service that responds from recordings. It is always ready.
///
/// Created by [`ReplayLayer`].
#[derive(Clone, Debug)]
pub struct Replay {
    layer: ReplayLayer,
}

impl Replay {
    pub(super) const fn new(layer: ReplayLayer) -> Self {
        Self { layer }
    }
}

impl Service<http::Request<Full<Bytes>>> for Replay {
    type Response = http::Response<ReplayBody>;
    type Error = Error;
    type Future = Ready<Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Full<Bytes>>) -> Self::Future {
        let exchange = self.layer.take(&request);
        ready(exchange.and_then(|exchange| self.answer(&exchange)))
    }
}

impl Replay {
    fn answer(&self, exchange: &Exchange) -> Result<http::Response<ReplayBody>, Error> {
        let end = failure(&exchange.end);
        let Some(recorded) = &exchange.response else {
            return Err(end.unwrap_or_else(|| broken("it has no response")));
        };
        let Response {
            status,
            headers,
            times,
            ..
        } = recorded;
        let pieces = recorded.pieces();
        let pieces = pieces.ok_or_else(|| broken("its chunk offsets do not fit its body"))?;
        let times = if self.layer.at_times {
            times.as_slice()
        } else {
            &[]
        };
        let mut response = http::Response::new(ReplayBody::new(pieces, times, end));
        *response.status_mut() =
            StatusCode::from_u16(*status).map_err(|_| broken("its status is invalid"))?;
        for (name, value) in headers {
            let header = name.parse::<HeaderName>().ok();
            let header = header.zip(HeaderValue::from_str(value).ok());
            let (name, value) = header.ok_or_else(|| broken("one of its headers is invalid"))?;
            response.headers_mut().append(name, value);
        }
        Ok(response)
    }
}

/// The error at the end of a recording, if it did not finish.
fn failure(end: &End) -> Option<Error> {
    match end {
        End::Finished => None,
        End::Failed { kind, message } => Some(Error::new(*kind, message.as_str())),
        End::Dropped => Some(
            Error::new(
                ErrorKind::Configuration,
                "the recording ends here because the response was dropped",
            )
            .with_code("recording_ended"),
        ),
        End::Lost(reason) => Some(
            Error::new(
                ErrorKind::Configuration,
                format!("the body was not recorded: {reason}"),
            )
            .with_code("recording_ended"),
        ),
    }
}

fn broken(what: &str) -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!("the recording is invalid: {what}"),
    )
}
