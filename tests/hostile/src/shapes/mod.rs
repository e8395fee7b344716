//! The shapes of hostile requests, each with one repeated element.

mod ag_ui;
mod console;
mod mcp;
mod openai;
mod uris;
mod use_chat;

use crate::endpoint::Endpoint;

/// A request with one repeated element.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// The name in the table and on the command line.
    pub(crate) name: &'static str,
    /// Whether `--quick` includes the shape.
    pub(crate) quick: bool,
    /// The endpoint that reads the request.
    pub(crate) endpoint: Endpoint,
    /// Builds a body whose repeated element takes a number of bytes.
    build: fn(usize) -> Vec<u8>,
}

impl Shape {
    /// Returns a request body of about `bytes` bytes, and never more.
    pub(crate) fn body(&self, bytes: usize) -> Vec<u8> {
        let mut share = bytes.saturating_sub((self.build)(0).len());
        loop {
            let body = (self.build)(share);
            match body.len().checked_sub(bytes) {
                None | Some(0) => return body,
                Some(_) if share == 0 => return body,
                Some(over) => share = share.saturating_sub(over),
            }
        }
    }
}

/// Returns all shapes.
pub(crate) fn all() -> impl Iterator<Item = &'static Shape> {
    let lists = [
        ag_ui::ALL,
        openai::CHAT,
        openai::RESPONSES,
        use_chat::ALL,
        console::ALL,
        uris::PAGES,
        uris::THREADS,
        mcp::ALL,
    ];
    lists.into_iter().flatten()
}

/// Returns the shape named `name`.
pub(crate) fn find(name: &str) -> Option<&'static Shape> {
    all().find(|shape| shape.name == name)
}

/// Declares the shapes of an endpoint, each with a function that builds an `$input`.
macro_rules! shapes {
    ($all:ident: $endpoint:ident, $input:ty => $bytes:expr; $($quick:literal $name:literal: $build:expr;)*) => {
        pub(super) const $all: &[Shape] = &[$(Shape {
            name: $name,
            quick: $quick,
            endpoint: Endpoint::$endpoint,
            build: |bytes| {
                let build: fn(usize) -> $input = $build;
                ($bytes)(build(bytes))
            },
        }),*];
    };
}
use shapes;

/// Joins as many items as fit into `bytes` with commas.
pub(super) fn list(bytes: usize, item: impl Fn(usize) -> String) -> String {
    let mut all = String::with_capacity(bytes + 1);
    for at in 0.. {
        let item = item(at);
        let comma = usize::from(at > 0);
        if all.len() + comma + item.len() > bytes {
            break;
        }
        if at > 0 {
            all.push(',');
        }
        all.push_str(&item);
    }
    all
}

/// Repeats `unit` as often as it fits into `bytes`.
pub(super) fn fill(bytes: usize, unit: &str) -> String {
    unit.repeat(bytes / unit.len())
}

/// Nests `inner` in `depth` objects with the key `key`.
pub(super) fn nest(depth: usize, key: &str, inner: &str) -> String {
    let mut all = format!(r#"{{"{key}":"#).repeat(depth);
    all.push_str(inner);
    all.push_str(&"}".repeat(depth));
    all
}

/// The place of a byte that is not UTF-8.
const INVALID: &str = "\x7f";

/// Returns the bytes of a body, with invalid ones in the place of each [`INVALID`].
fn bytes(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    for byte in &mut bytes {
        if *byte == 0x7f {
            *byte = 0xff;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::endpoint::Endpoint;
    use std::collections::HashSet;

    #[test]
    fn every_shape_fills_its_bytes() {
        let mut names = HashSet::new();
        for shape in all() {
            assert!(names.insert(shape.name), "two shapes `{}`", shape.name);
            for bytes in [32 << 10, shape.endpoint.raised().min(256 << 10)] {
                let body = shape.body(bytes);
                assert!(body.len() <= bytes, "{}: {} bytes", shape.name, body.len());
                // Shapes with a limit of their own stay below the size.
                let least = if shape.name.contains("resume-") {
                    bytes / 20
                } else {
                    bytes * 9 / 10
                };
                assert!(body.len() >= least, "{}: {} bytes", shape.name, body.len());
                use Endpoint::{Console, Pages, Threads};
                let is_json = !matches!(shape.endpoint, Console | Pages | Threads)
                    && !shape.name.ends_with("utf-8")
                    && !shape.name.ends_with("depth");
                if is_json {
                    let json = serde_json::from_slice::<serde_json::Value>(&body);
                    assert!(json.is_ok(), "{}: {json:?}", shape.name);
                }
            }
        }
        assert!(names.len() >= 90);
    }
}
