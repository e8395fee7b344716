use super::{Decoder, TooLarge, append};
use bytes::{Bytes, BytesMut};

fn read(chunks: &[&[u8]]) -> Vec<(String, bool)> {
    let mut decoder = Decoder::new(1 << 20, 1 << 20);
    let mut frames = Vec::new();
    let mut drain = |decoder: &mut Decoder| {
        while let Some(frame) = decoder.next().unwrap() {
            frames.push((String::from_utf8(frame.data.to_vec()).unwrap(), frame.tail));
        }
    };
    for chunk in chunks {
        decoder.push(Bytes::copy_from_slice(chunk));
        drain(&mut decoder);
    }
    decoder.end();
    drain(&mut decoder);
    frames
}

fn data(input: &[u8]) -> Vec<String> {
    let whole = read(&[input]);
    for size in 1..=input.len().max(1) {
        let chunks: Vec<&[u8]> = input.chunks(size).collect();
        assert_eq!(read(&chunks), whole, "in chunks of {size}");
    }
    whole.into_iter().map(|(data, _)| data).collect()
}

#[test]
fn every_line_format_is_decoded() {
    let vectors: &[(&str, &[&str])] = &[
        ("", &[]),
        ("\n\n\n", &[]),
        ("data: a\n\n", &["a"]),
        ("data: a\r\n\r\n", &["a"]),
        ("data: a\r\r", &["a"]),
        ("data: a\r\rdata: b\r\r", &["a", "b"]),
        ("data: a\n\r\ndata: b\r\n\n", &["a", "b"]),
        ("data: a\r\n\ndata: b\n\r\n", &["a", "b"]),
        ("\u{feff}data: a\n\n", &["a"]),
        ("\u{feff}\u{feff}data: a\n\n", &[]),
        ("data: \u{feff}a\n\n", &["\u{feff}a"]),
        (": comment\n\ndata: a\n\n", &["a"]),
        (": c\ndata: a\n: c\n\n: c\n\n", &["a"]),
        (":\n\n", &[]),
        ("data: a\ndata: b\n\n", &["a\nb"]),
        ("data: a\ndata:\ndata: b\n\n", &["a\n\nb"]),
        ("data: a\r\ndata: b\rdata: c\n\n", &["a\nb\nc"]),
        ("data\n\n", &[""]),
        ("data:\n\n", &[""]),
        ("data: \n\n", &[""]),
        ("data\ndata\n\n", &["\n"]),
        ("data\ndata: a\n\n", &["\na"]),
        ("data:a\n\n", &["a"]),
        ("data:  a\n\n", &[" a"]),
        ("data: a: b\n\n", &["a: b"]),
        ("data:\ta\n\n", &["\ta"]),
        (" data: a\n\n", &[]),
        ("Data: a\n\n", &[]),
        ("database: a\n\n", &[]),
        ("event: x\n\n", &[]),
        ("event: x\ndata: a\nid: 7\nretry: 10\nid\n\n", &["a"]),
        ("what: ever\ndata: a\nnothing\n\n", &["a"]),
        ("data: äöü€😀\n\n", &["äöü€😀"]),
        ("data: [DONE]\n\n", &["[DONE]"]),
        // JSON without a field name: see the module docs.
        (
            "data: a\n\n{\n  \"b\": 1\n}\n\ndata: c\n\n",
            &["a", "{\n  \"b\": 1\n}", "c"],
        ),
        ("{\r\ndata: a\r\n}", &["{\ndata: a\n}"]),
        ("data: a\n{}\n\n {}\n\n", &["a"]),
        // No blank line at the end: see the module docs.
        ("data: a\n\ndata: b\n", &["a", "b"]),
        ("data: a\n\ndata: b", &["a", "b"]),
        ("data: a\ndata: b", &["a\nb"]),
        ("data: a\r\n", &["a"]),
        ("data: a\r", &["a"]),
        ("data: a\n\nevent: x", &["a"]),
        ("data: a\n\ndat", &["a"]),
    ];
    for (input, expected) in vectors {
        assert_eq!(data(input.as_bytes()), *expected, "{input:?}");
    }
}

#[test]
fn an_event_without_a_blank_line_is_a_tail() {
    assert_eq!(
        read(&[b"data: a\n\ndata: b"]),
        [("a".to_owned(), false), ("b".to_owned(), true)]
    );
}

#[test]
fn an_event_is_ready_at_its_blank_line() {
    for end in ["\n\n", "\r\n\r", "\r\r"] {
        let mut decoder = Decoder::new(100, 100);
        decoder.push(format!("data: a{end}").into());
        assert_eq!(decoder.next().unwrap().unwrap().data, b"a", "{end:?}");
        assert_eq!(decoder.next(), Ok(None));
    }
}

#[test]
fn the_error_type_applies_to_one_event() {
    let mut decoder = Decoder::new(100, 100);
    decoder.push(Bytes::from_static(
        b"event: error\ndata: a\n\ndata: b\n\nevent: error\n\ndata: c\n\n",
    ));
    let mut seen = Vec::new();
    while let Some(frame) = decoder.next().unwrap() {
        seen.push(frame.error);
    }
    assert_eq!(seen, [true, false, false]);
}

#[test]
fn limits_apply_to_every_chunk_size() {
    let cases: &[(&str, TooLarge)] = &[
        ("data: 0123456789012345", TooLarge::Line),
        ("data: 0123456789012345\n\n", TooLarge::Line),
        (": 012345678901234567890", TooLarge::Line),
        ("data: 01234567\ndata: 01234567\n", TooLarge::Event),
        (
            "data: 0\n: 0123456789\n: 0123456789\n: 01234567890\n",
            TooLarge::Event,
        ),
    ];
    for (input, expected) in cases {
        for size in 1..=input.len() {
            let mut decoder = Decoder::new(20, 15);
            let mut found = None;
            for chunk in input.as_bytes().chunks(size) {
                decoder.push(Bytes::copy_from_slice(chunk));
                loop {
                    match decoder.next() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(error) => {
                            found = found.or(Some(error));
                            break;
                        }
                    }
                }
            }
            assert_eq!(found, Some(*expected), "{input:?} in chunks of {size}");
        }
    }
}

#[test]
fn one_large_event_in_small_chunks_is_linear() {
    let mut decoder = Decoder::new(1 << 23, 1 << 23);
    decoder.push(Bytes::from_static(b"data: "));
    for _ in 0..4096 {
        decoder.push(Bytes::from_static(&[b'x'; 1024]));
        assert_eq!(decoder.next(), Ok(None));
    }
    decoder.push(Bytes::from_static(b"\n\n"));
    assert_eq!(decoder.next().unwrap().unwrap().data.len(), 4 << 20);
}

#[test]
fn bytes_are_taken_over_unless_most_of_their_memory_is_unused() {
    let with = |capacity, len| {
        let mut bytes = BytesMut::with_capacity(capacity);
        bytes.resize(len, b'x');
        let at = bytes.as_ptr();
        let mut buffer = BytesMut::new();
        append(&mut buffer, bytes.freeze());
        assert_eq!(buffer.len(), len);
        (buffer.as_ptr() == at, buffer.capacity())
    };
    assert_eq!(with(4096, 4096), (true, 4096));
    let (is_taken, capacity) = with(4096, 100);
    assert!(!is_taken && capacity < 4096, "{capacity}");
    // Another handle may still read them.
    let bytes = Bytes::from(vec![b'x'; 100]);
    let mut buffer = BytesMut::new();
    append(&mut buffer, bytes.clone());
    buffer[0] = b'y';
    assert_eq!(bytes[0], b'x');
}
