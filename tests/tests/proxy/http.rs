//! What a service writes to a connection, byte by byte.

use super::{dice::Dice, server::Act};
use bytes::Bytes;
use std::iter::from_fn;

/// How a response says where its body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Chunked,
    Length(usize),
    Close,
}

impl Framing {
    /// One at random, of a body of that length.
    pub fn at_random(dice: &mut Dice, length: usize) -> Self {
        match dice.below(3) {
            0 => Self::Chunked,
            1 => Self::Length(length),
            _ => Self::Close,
        }
    }
}

/// The head of a response.
pub fn head(status: u16, headers: &[(&str, &str)], framing: Framing) -> String {
    let mut head = format!("HTTP/1.1 {status} Said\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    match framing {
        Framing::Chunked => head += "transfer-encoding: chunked\r\n",
        Framing::Length(length) => head += &format!("content-length: {length}\r\n"),
        Framing::Close => {}
    }
    head + "\r\n"
}

/// A piece of a body.
pub fn piece(framing: Framing, bytes: &[u8]) -> Bytes {
    match framing {
        Framing::Chunked => {
            let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
            chunk.extend_from_slice(bytes);
            chunk.extend_from_slice(b"\r\n");
            chunk.into()
        }
        _ => Bytes::copy_from_slice(bytes),
    }
}

/// A head, and a body in pieces of up to `longest` bytes. A chunked body has no end yet.
pub fn start(
    head: String,
    framing: Framing,
    body: &[u8],
    longest: u64,
    dice: &mut Dice,
) -> Vec<Act> {
    let mut rest = body;
    let pieces = from_fn(|| {
        let length = (1 + dice.below(longest) as usize).min(rest.len());
        let (piece, others) = rest.split_at(length);
        rest = others;
        (length > 0).then_some(piece)
    });
    let pieces = pieces.map(|bytes| Act::Send(piece(framing, bytes)));
    let mut acts = vec![Act::Send(head.into())];
    acts.extend(pieces);
    acts
}

/// The end of a chunked body.
pub fn last_chunk() -> Act {
    Act::Send(Bytes::from_static(b"0\r\n\r\n"))
}

/// A whole response.
pub fn whole(status: u16, headers: &[(&str, &str)], body: &[u8], dice: &mut Dice) -> Vec<Act> {
    let framing = Framing::at_random(dice, body.len());
    let mut acts = start(head(status, headers, framing), framing, body, 40, dice);
    if framing == Framing::Chunked {
        acts.push(last_chunk());
    }
    acts
}
