//! Texts in an event stream, written in all the ways that one may be, in pieces.
use arbitrary::Arbitrary;
use concentric_fuzz::{Cut, Script, Style, ask, check};

#[derive(Arbitrary, Debug)]
pub(crate) struct Stream {
    api: u8,
    bom: bool,
    texts: Vec<(String, Event)>,
    last: Event,
    /// The line feeds at the end are missing.
    cut_off: bool,
    done: bool,
    lengths: Vec<u8>,
    breaks: bool,
}

#[derive(Arbitrary, Debug)]
pub(crate) struct Event {
    style: Style,
    end: End,
    /// What stands before the data, and behind it.
    before: Vec<Line>,
    behind: Vec<Line>,
    space: bool,
    blank: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum End {
    Lf,
    Cr,
    CrLf,
}

#[derive(Arbitrary, Debug)]
enum Line {
    Comment(String),
    Event,
    Id(String),
    Retry(u16),
    Other(String),
}

impl End {
    const fn text(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::Cr => "\r",
            Self::CrLf => "\r\n",
        }
    }
}

impl Event {
    fn write(&self, out: &mut String, json: &str) {
        let end = self.end.text();
        let space = if self.space { " " } else { "" };
        let lines = |out: &mut String, lines: &[Line]| {
            for line in lines {
                let line = match line {
                    Line::Comment(text) => format!(":{text}"),
                    Line::Event => format!("event:{space}message"),
                    Line::Id(text) => format!("id:{space}{text}"),
                    Line::Retry(time) => format!("retry:{space}{time}"),
                    Line::Other(text) => format!("x{text}"),
                };
                out.push_str(&line.replace(['\r', '\n'], ""));
                out.push_str(end);
            }
        };
        lines(out, &self.before);
        for line in json.lines() {
            out.push_str("data:");
            out.push_str(space);
            out.push_str(line);
            out.push_str(end);
        }
        lines(out, &self.behind);
        for _ in 0..=self.blank % 4 {
            out.push_str(end);
        }
    }
}

pub(crate) fn run(stream: Stream) {
    let script = Script::pick(stream.api);
    let texts = stream.texts.iter().map(|(text, _)| text.as_str());
    let expected: String = texts.clone().collect();
    let chunks = script.texts(texts);
    let mut body = String::from(if stream.bom { "\u{feff}" } else { "" });
    let mut events = stream.texts.iter().map(|(_, event)| event);
    for chunk in &chunks {
        let event = events.next().unwrap_or(&stream.last);
        event.write(&mut body, &event.style.write(chunk));
    }
    if stream.done {
        stream.last.write(&mut body, "[DONE]");
    }
    if stream.cut_off {
        body.truncate(body.trim_end_matches(['\r', '\n']).len());
    }
    let bytes = body.len();
    let cut = Cut::new(body.into(), &stream.lengths);
    // A connection may break behind the last word, but not within the last line of it.
    let observed = ask(
        script.api(),
        "text/event-stream",
        cut.breaks(stream.breaks && !stream.cut_off),
    );
    check(&observed, bytes);
    assert!(observed.error.is_none(), "{:?}", observed.error);
    assert_eq!(observed.text(), expected);
}
