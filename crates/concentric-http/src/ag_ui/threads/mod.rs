//! HTTP access to stored threads, and to the runs of a thread.

mod body;
mod page;
mod query;
mod respond;
mod run;
mod service;

pub use self::{
    body::ThreadsBody,
    service::{Threads, ThreadsFuture},
};
