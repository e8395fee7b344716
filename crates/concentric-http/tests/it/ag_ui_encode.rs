//! Frames: the fast path compared with serde, and the requirements of client parsers.

use bytes::BytesMut;
use concentric_http::ag_ui::{
    Event, ReasoningMessageContent, RunError, TextMessageContent, ToolCallArgs, encode,
};
use proptest::prelude::*;

fn frame(event: impl Into<Event>) -> Vec<u8> {
    let mut buffer = Vec::new();
    encode::event(&event.into(), &mut buffer);
    buffer
}

fn check(id: &str, delta: &str) {
    let mut buffer = Vec::new();
    encode::text_message_content(id, delta, &mut buffer);
    assert_eq!(buffer, frame(TextMessageContent::new(id, delta)));

    buffer.clear();
    encode::reasoning_message_content(id, delta, &mut buffer);
    assert_eq!(buffer, frame(ReasoningMessageContent::new(id, delta)));

    buffer.clear();
    encode::tool_call_args(id, delta, &mut buffer);
    assert_eq!(buffer, frame(ToolCallArgs::new(id, delta)));
}

#[test]
fn a_frame_is_one_json_line_and_two_line_feeds() {
    let buffer = frame(RunError::new("a\r\nb\n\nc"));
    assert_eq!(
        buffer,
        b"data: {\"type\":\"RUN_ERROR\",\"message\":\"a\\r\\nb\\n\\nc\"}\n\n"
    );
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
    encode::event(&RunError::new("no").into(), &mut vec);
    encode::event(&RunError::new("no").into(), &mut bytes);
    encode::keep_alive(&mut vec);
    encode::keep_alive(&mut bytes);
    assert_eq!(vec, bytes);
    assert!(vec.ends_with(b"}\n\n: keep-alive\n\n"));
}

#[test]
fn a_buffer_with_capacity_is_not_reallocated() {
    let mut bytes = BytesMut::with_capacity(1024);
    let before = (bytes.as_ptr(), bytes.capacity());
    encode::text_message_content("message-1", "twenty bytes of text", &mut bytes);
    encode::event(
        &TextMessageContent::new("message-1", "more").into(),
        &mut bytes,
    );
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
