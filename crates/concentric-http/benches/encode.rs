//! The cost of encoding one text delta. Run it under callgrind and divide by the number of deltas.
//!
//! ```text
//! cargo bench -p concentric-http --bench encode --no-run
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*' <binary> 1000
//! ```
//!
//! The argument is the number of frames (default 1000), each a `TEXT_MESSAGE_CONTENT` of 20 bytes
//! with a UUID. The goal is 500 instructions per frame.

use std::hint::black_box;

use bytes::BytesMut;
use concentric_http::ag_ui::encode;

const ID: &str = "0194f5a0-7e3c-7d2b-9c41-5b8f6a2d9e10";
const TEXT: &str = "twenty bytes of text";

#[inline(never)]
fn measured(frames: usize, buffer: &mut BytesMut) {
    for _ in 0..frames {
        encode::text_message_content(black_box(ID), black_box(TEXT), buffer);
    }
}

fn main() {
    let frames = std::env::args()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(1000);
    let mut buffer = BytesMut::with_capacity(frames * 128);
    measured(frames, &mut buffer);
    println!("{frames} frames, {} bytes", black_box(&buffer).len());
}
