//! Paths and queries, of the console's pages and of threads.

use super::{Shape, bytes, fill, list, shapes};
use crate::endpoint::Endpoint;

/// Repeats a parameter as often as it fits.
fn query(path: &str, bytes: usize, parameter: impl Fn(usize) -> String) -> String {
    format!("{path}?{}", list(bytes, parameter).replace(',', "&"))
}

shapes! { PAGES: Pages, String => bytes;
    true "pages-parameters": |n| query("/run", n, |i| format!("x{i}="));
    false "pages-equal-parameters": |n| query("/run", n, |_| "run=r".to_owned());
    false "pages-escapes": |n| format!("/run?tenant=default&run=r&thread={}", fill(n, "%2541"));
    false "pages-path": |n| format!("/{}", fill(n, "a/"));
    false "pages-number": |n| format!("/approvals?page={}", fill(n, "1"));
}

shapes! { THREADS: Threads, String => bytes;
    true "threads-parameters": |n| query("/t", n, |i| format!("x{i}="));
    false "threads-equal-parameters": |n| query("/t", n, |_| "limit=1".to_owned());
    false "threads-escapes": |n| format!("/{}", fill(n, "%41"));
    false "threads-segments": |n| format!("/t/runs/{}", fill(n, "a/"));
    false "threads-number": |n| format!("/t?limit={}", fill(n, "1"));
}
