//! `POST /chat/completions`.

mod encode;
mod request;

pub(super) use self::request::ChatInput;
