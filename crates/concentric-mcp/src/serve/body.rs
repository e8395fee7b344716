//! The body of a client's message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::StatusCode;
use http_body::Body;
use http_body_util::BodyExt;
use std::{pin::pin, time::Duration};
use tokio::time::timeout;

/// The maximum size of a message, in bytes, and the time in which it must arrive.
const MAX_BYTES: usize = 4 << 20;
const UPLOAD: Duration = Duration::from_secs(30);

/// The maximum number of JSON values in a message, of which an object counts as three, and each of its fields as one
/// more: a parsed value takes many times the bytes of the text, and is copied several times.
const MAX_VALUES: usize = 48 << 10;

/// Reads a message. An error is the status of the response.
pub(super) async fn read<B: Body>(body: B) -> Result<Bytes, StatusCode> {
    let read = timeout(UPLOAD, collect(body)).await;
    let bytes = read.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT))?;
    match values(&bytes) <= MAX_VALUES {
        true => Ok(bytes),
        false => Err(StatusCode::PAYLOAD_TOO_LARGE),
    }
}

async fn collect<B: Body>(body: B) -> Result<Bytes, StatusCode> {
    let (mut body, mut bytes) = (pin!(body), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        // Trailers are ignored.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.remaining() > MAX_BYTES.saturating_sub(bytes.len()) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        bytes.put(data);
    }
    Ok(bytes.freeze())
}

/// Counts the values of a JSON text by its commas, colons and opening brackets.
fn values(text: &[u8]) -> usize {
    let mut count: usize = 1;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' | b':' | b'[' => count += 1,
            b'{' => count += 3,
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn values_are_counted_outside_texts() {
        for (text, count) in [
            ("", 1),
            ("0", 1),
            ("[0,0]", 3),
            (r#"{"a":0,"b":[]}"#, 8),
            (r#"["[{,\"[{,",0]"#, 3),
            (r#""["#, 1),
            (r#""\"#, 1),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }
}
