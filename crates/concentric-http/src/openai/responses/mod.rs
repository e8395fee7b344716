//! `POST /responses`.

mod encode;
mod request;

pub(super) use self::request::ResponsesInput;
