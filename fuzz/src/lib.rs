//! What the fuzz targets share: an answer of any bytes, in any pieces, and what must hold of it.
//!
//! `.ci/fuzz` says how they are run.

mod answer;
mod body;
mod script;

pub use self::{
    answer::{ask, check, raw},
    body::Cut,
    script::{Script, Style},
};
