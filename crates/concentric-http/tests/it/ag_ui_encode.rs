//! Frames: the fast path compared with serde, and the requirements of client parsers.

use crate::support::{agent, input, post, send};
use bytes::BytesMut;
use concentric_core::{Error, ErrorKind};
use concentric_http::ag_ui::{AgUiLayer, encode};
use proptest::prelude::*;
use tower_layer::Layer;

/// The frame of an event with an id and a delta, written by serde.
fn frame(name: &str, id_field: &str, id: &str, delta: &str) -> Vec<u8> {
    let [id, delta] = [id, delta].map(|text| serde_json::to_string(text).unwrap());
    let frame = format!("data: {{\"type\":\"{name}\",\"{id_field}\":{id},\"delta\":{delta}}}\n\n");
    frame.into_bytes()
}

fn check(id: &str, delta: &str) {
    let mut buffer = Vec::new();
    encode::text_message_content(id, delta, &mut buffer);
    assert_eq!(
        buffer,
        frame("TEXT_MESSAGE_CONTENT", "messageId", id, delta)
    );

    buffer.clear();
    encode::reasoning_message_content(id, delta, &mut buffer);
    assert_eq!(
        buffer,
        frame("REASONING_MESSAGE_CONTENT", "messageId", id, delta)
    );

    buffer.clear();
    encode::tool_call_args(id, delta, &mut buffer);
    assert_eq!(buffer, frame("TOOL_CALL_ARGS", "toolCallId", id, delta));
}

#[tokio::test]
async fn a_frame_contains_no_line_feed() {
    let text = "a\r\nb\n\nc";
    let failed = agent(vec![Err(Error::new(ErrorKind::Other, "failed"))]);
    let layer = AgUiLayer::new().error_message(move |_| text.to_owned());
    let events = send(layer.layer(failed), post(input().to_string()))
        .await
        .events();
    assert_eq!(events.last().unwrap()["message"], text);
}

#[test]
fn every_byte_is_escaped_at_every_position_of_a_word() {
    for byte in 0..=0xff_u8 {
        for place in 0..17 {
            let mut text = "x".repeat(17);
            text.insert(place, char::from(byte));
            check(&text, &text);
        }
    }
}

#[test]
fn line_separators_and_wide_characters_are_unchanged() {
    check("\u{2028}\u{2029}", "\u{7f}\u{80}é漢🦀\u{10ffff}");
}

#[test]
fn frames_are_appended_to_either_buffer() {
    let mut vec = b"x".to_vec();
    let mut bytes = BytesMut::from(&b"x"[..]);
    for (id, delta) in [("m", ""), ("m", "a\"b"), ("", "\\\\")] {
        encode::text_message_content(id, delta, &mut vec);
        encode::text_message_content(id, delta, &mut bytes);
    }
    encode::tool_call_args("c", "{}", &mut vec);
    encode::tool_call_args("c", "{}", &mut bytes);
    assert_eq!(vec, bytes);
}

#[test]
fn a_buffer_with_capacity_is_not_reallocated() {
    let mut bytes = BytesMut::with_capacity(1024);
    let before = (bytes.as_ptr(), bytes.capacity());
    encode::text_message_content("message-1", "twenty bytes of text", &mut bytes);
    encode::text_message_content("message-1", "more", &mut bytes);
    assert_eq!((bytes.as_ptr(), bytes.capacity()), before);
}

proptest! {
    #[test]
    fn the_fast_path_writes_what_serde_writes(id in any::<String>(), delta in any::<String>()) {
        check(&id, &delta);
    }

    #[test]
    fn the_fast_path_escapes_what_serde_escapes(
        delta in proptest::collection::vec(
            prop_oneof![
                (0_u8..0x30).prop_map(char::from),
                Just('\\'),
                any::<char>(),
                (0x20_u8..0x7f).prop_map(char::from),
            ],
            0..64,
        ),
    ) {
        let delta: String = delta.into_iter().collect();
        check("m", &delta);
    }
}
