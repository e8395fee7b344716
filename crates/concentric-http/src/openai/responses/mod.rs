//! `POST /responses`.

mod encode;
mod items;
mod request;

pub(super) use self::{
    encode::response_of,
    items::{items, output},
    request::ResponsesInput,
};
