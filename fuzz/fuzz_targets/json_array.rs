//! Texts in an array of JSON objects, in pieces.
use arbitrary::Arbitrary;
use concentric_fuzz::{Cut, Script, Style, ask, check};

#[derive(Arbitrary, Debug)]
pub(crate) struct Stream {
    api: u8,
    bom: bool,
    texts: Vec<(String, Style, Gap)>,
    last: (Style, Gap),
    lengths: Vec<u8>,
    breaks: bool,
}

/// What stands between two objects.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Gap {
    Nothing,
    Lf,
    CrLf,
    Several,
}

impl Gap {
    const fn text(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::Several => " \t\n\n",
        }
    }
}

pub(crate) fn run(stream: Stream) {
    let script = Script::pick(stream.api);
    let texts = stream.texts.iter().map(|(text, ..)| text.as_str());
    let expected: String = texts.clone().collect();
    let chunks = script.texts(texts);
    let mut body = String::from(if stream.bom { "\u{feff}" } else { "" });
    let mut ways = stream.texts.iter().map(|(_, style, gap)| (*style, *gap));
    let (_, outer) = stream.last;
    body.push_str(outer.text());
    body.push('[');
    for (at, chunk) in chunks.iter().enumerate() {
        let (style, gap) = ways.next().unwrap_or(stream.last);
        if at > 0 {
            body.push(',');
        }
        body.push_str(gap.text());
        body.push_str(&style.write(chunk));
        body.push_str(gap.text());
    }
    body.push(']');
    body.push_str(outer.text());
    let bytes = body.len();
    let cut = Cut::new(body.into(), &stream.lengths);
    let observed = ask(script.api(), "application/json", cut.breaks(stream.breaks));
    check(&observed, bytes);
    assert!(observed.error.is_none(), "{:?}", observed.error);
    assert_eq!(observed.text(), expected);
}
