//! A model over an HTTP service, independent of the API.
//!
//! Each call is one `POST` with the key, whose response is decoded while it arrives, in any framing.
//! A model does not retry and does not follow redirects; use separate layers above or below for
//! that. It is the innermost layer with chat requests; layers below it process HTTP requests.
//!
//! # Lifecycle
//!
//! | moment | effect |
//! |---|---|
//! | `call` | the HTTP service is called immediately, with its readiness |
//! | first content | the future resolves |
//! | an earlier error | the future fails |
//! | a later error | the last item of the body |
//! | a timeout ([`Timeouts`](crate::Timeouts)) | an error, from the future or the body |
//! | drop | the HTTP body is dropped, which ends the request |

mod body;
mod clocks;
mod config;
mod future;
mod input;
mod json;
mod layer;
mod service;
mod template;

pub use self::{body::Body, future::ResponseFuture, layer::ProviderLayer, service::Model};
#[cfg(feature = "activities")]
pub(crate) use self::{
    clocks::Clocks,
    config::Config,
    future::{Refused, is_compressed, request_id},
};
