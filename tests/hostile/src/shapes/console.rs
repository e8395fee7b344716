//! Forms that a hostile page or operator sends to the console.

use super::{INVALID, Shape, bytes, fill, shapes};
use crate::endpoint::Endpoint;

/// A reply with other fields.
fn reply(fields: &str) -> String {
    format!("tenant=default&thread=t&run=r&key=k&token=1.2&{fields}")
}

/// Repeats a field as often as it fits.
fn repeat(bytes: usize, field: impl Fn(usize) -> String) -> String {
    super::list(bytes, field).replace(',', "&")
}

shapes! { ALL: Console, String => bytes;
    true "console-fields": |n| reply(&repeat(n, |i| format!("x{i}=")));
    false "console-equal-fields": |n| reply(&repeat(n, |_| "token=1.2".to_owned()));
    false "console-ampersands": |n| reply(&fill(n, "&"));
    true "console-value": |n| reply(&format!("interrupt=i&arguments={}", fill(n, "a")));
    true "console-escapes": |n| reply(&format!("interrupt=i&arguments={}", fill(n, "%41")));
    false "console-blanks": |n| reply(&format!("interrupt=i&arguments={}", fill(n, "+")));
    false "console-name": |n| reply(&format!("{}=a", fill(n, "a")));
    true "console-interrupts": |n| {
        let value = fill(n / 1000, "a");
        reply(&repeat(n, |_| format!("interrupt={value}&digest=0&decision=approve")))
    };
    false "console-token": |n| format!("tenant=default&thread=t&run=r&token=1.{}", fill(n, "0"));
    false "console-thread": |n| format!("tenant=default&run=r&token=1.2&thread={}", fill(n, "%2541"));
    false "console-invalid-utf-8": |n| reply(&format!("interrupt={}", fill(n, INVALID)));
    false "console-invalid-escapes": |n| reply(&format!("interrupt={}", fill(n, "%ff")));
}
