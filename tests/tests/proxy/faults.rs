//! What goes wrong with a connection, and the error that belongs to it.

use super::{
    dice::Dice,
    http::{Framing, head, piece, start, whole},
    server::Act,
    wire::{Api, CANARY},
};
use bytes::Bytes;
use concentric_core::ErrorKind;
use concentric_providers::{Limits, Timeouts};
use std::time::Duration;

/// How long a service that says nothing is waited for.
const SHORT: Duration = Duration::from_millis(200);

/// Between the bytes of a service that drips. A whole event takes more than [`SHORT`].
const DRIP: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// None: the answer is whole, in pieces of any length.
    None,
    /// The head says of the body what is not so.
    WrongHead,
    /// The body ends as if it were whole.
    Ended,
    /// The connection is closed within what the head announced.
    Cut,
    Reset,
    CutHead,
    ResetHead,
    StalledHead,
    DrippedHead,
    Stalled,
    /// Whole but for the end of the body.
    StalledEnd,
    Dripped,
    Pings,
    Slow,
    EndlessLine,
    EndlessEvent,
    EndlessBody,
    EndlessArguments,
    ManyCalls,
    EndlessError,
    StalledError,
    CutError,
    NoHttp,
    NoChunk,
    NoAnswer,
    NoEvent,
    Page,
    BadGateway,
    Empty,
    Redirect,
    RateLimited,
    Unavailable,
    ErrorEvent,
    Restarted,
    Compressed,
}

/// An error that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fails {
    pub kind: ErrorKind,
    pub code: Option<&'static str>,
    pub status: Option<u16>,
    pub retry_after: Option<Duration>,
}

/// A connection, and what comes of it.
#[derive(Debug)]
pub struct Case {
    pub acts: Vec<Act>,
    pub timeouts: Timeouts,
    pub fails: Option<Fails>,
}

/// `retry-after`, and what is made of it.
pub const RETRY_AFTER: [(&str, &str, Option<Duration>); 9] = [
    ("retry-after", "7", Some(Duration::from_secs(7))),
    ("retry-after", "0.5", Some(Duration::from_millis(500))),
    ("retry-after", "-3", Some(Duration::ZERO)),
    ("retry-after", "99999999999999999999", Some(MOST)),
    ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT", Some(MOST)),
    (
        "retry-after",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        Some(Duration::ZERO),
    ),
    ("retry-after-ms", "1500", Some(Duration::from_millis(1500))),
    ("x-ms-retry-after-ms", "20", Some(Duration::from_millis(20))),
    ("retry-after", "soon", None),
];

const MOST: Duration = Duration::from_secs(60 * 60);

/// How much a service may send.
pub fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.line = 32 * 1024;
    limits.event = 32 * 1024;
    limits.response = 256 * 1024;
    limits.tool_arguments = 8 * 1024;
    limits.tool_calls = 8;
    limits.error = 4 * 1024;
    limits
}

fn fails(kind: ErrorKind) -> Fails {
    Fails {
        kind,
        code: None,
        status: None,
        retry_after: None,
    }
}

fn late(code: &'static str) -> Fails {
    Fails {
        code: Some(code),
        ..fails(ErrorKind::Timeout)
    }
}

fn refused(kind: ErrorKind, status: u16) -> Fails {
    Fails {
        status: Some(status),
        ..fails(kind)
    }
}

fn sent(bytes: impl Into<Bytes>) -> Act {
    Act::Send(bytes.into())
}

impl Fault {
    pub const ALL: [Self; 35] = [
        Self::None,
        Self::WrongHead,
        Self::Ended,
        Self::Cut,
        Self::Reset,
        Self::CutHead,
        Self::ResetHead,
        Self::StalledHead,
        Self::DrippedHead,
        Self::Stalled,
        Self::StalledEnd,
        Self::Dripped,
        Self::Pings,
        Self::Slow,
        Self::EndlessLine,
        Self::EndlessEvent,
        Self::EndlessBody,
        Self::EndlessArguments,
        Self::ManyCalls,
        Self::EndlessError,
        Self::StalledError,
        Self::CutError,
        Self::NoHttp,
        Self::NoChunk,
        Self::NoAnswer,
        Self::NoEvent,
        Self::Page,
        Self::BadGateway,
        Self::Empty,
        Self::Redirect,
        Self::RateLimited,
        Self::Unavailable,
        Self::ErrorEvent,
        Self::Restarted,
        Self::Compressed,
    ];

    /// Whether the API has a way for it: of Ollama's, nothing says where an answer begins.
    pub fn is_of(self, api: Api) -> bool {
        self != Self::Restarted || api != Api::Ollama
    }

    /// A connection with the fault at a place that `dice` says. Redirects are to `elsewhere`.
    pub fn case(self, api: Api, elsewhere: &str, dice: &mut Dice) -> Case {
        use ErrorKind::{
            Connection, Overloaded, Protocol, RateLimited, Server, TooLarge, Truncated,
        };
        let typed = [("content-type", api.content_type())];
        let html = [("content-type", "text/html")];
        let answer = api.answer("first");
        let bytes = answer.bytes();
        let k = dice.below(answer.short_of_whole() as u64 + 1) as usize;
        // Between two events, behind the first and before the last.
        let frames = 2 + dice.below(answer.frames.len() as u64 - 4) as usize;
        let before = answer.frames[..frames].concat();
        let framing = Framing::at_random(dice, bytes.len());
        let chunked = |status| head(status, &typed, Framing::Chunked);
        let chunk = |bytes: &[u8]| sent(piece(Framing::Chunked, bytes));
        let flood = |bytes: &[u8]| Act::Flood(piece(Framing::Chunked, &bytes.repeat(16)));
        let mut timeouts = Timeouts::off();
        let (acts, fails) = match self {
            Self::None => (whole(200, &typed, &bytes, dice), None),
            Self::WrongHead => {
                let types = ["text/plain", "application/json", "text/html", ""];
                let typed = [
                    ("content-type", types[dice.below(4) as usize]),
                    (
                        "content-encoding",
                        ["identity", "none"][dice.below(2) as usize],
                    ),
                ];
                (whole(200, &typed, &bytes, dice), None)
            }
            Self::Ended => (
                whole(200, &typed, &bytes[..k], dice),
                Some(fails(Truncated)),
            ),
            Self::Cut => {
                let kind = match framing {
                    Framing::Close => Truncated,
                    _ => Connection,
                };
                let head = head(200, &typed, framing);
                let acts = start(head, framing, &bytes[..k], 40, dice);
                (acts, Some(fails(kind)))
            }
            Self::Reset => {
                let head = head(200, &typed, framing);
                let mut acts = start(head, framing, &bytes[..k], 40, dice);
                acts.push(Act::Reset);
                (acts, Some(fails(Connection)))
            }
            Self::CutHead | Self::ResetHead => {
                let head = head(200, &typed, framing);
                let k = dice.below(head.len() as u64 - 1) as usize;
                let mut acts = vec![sent(head[..k].to_owned())];
                acts.extend((self == Self::ResetHead).then_some(Act::Reset));
                (acts, Some(fails(Connection)))
            }
            Self::StalledHead => {
                timeouts = timeouts.idle(SHORT);
                let head = head(200, &typed, framing);
                let k = dice.below(head.len() as u64 - 1) as usize;
                (
                    vec![sent(head[..k].to_owned()), Act::Stall],
                    Some(late("idle")),
                )
            }
            Self::DrippedHead => {
                timeouts = timeouts.idle(SHORT);
                let head = head(200, &typed, framing);
                (
                    vec![Act::Drip(head.into(), DRIP), Act::Stall],
                    Some(late("idle")),
                )
            }
            Self::Stalled => {
                timeouts = timeouts.idle(SHORT);
                let head = head(200, &typed, framing);
                let mut acts = start(head, framing, &bytes[..k], 40, dice);
                acts.push(Act::Stall);
                (acts, Some(late("idle")))
            }
            Self::StalledEnd => {
                timeouts = timeouts.idle(SHORT);
                let mut acts = start(chunked(200), Framing::Chunked, &bytes, 40, dice);
                acts.push(Act::Stall);
                (acts, None)
            }
            Self::Dripped => {
                timeouts = timeouts.progress(SHORT);
                let acts = vec![
                    sent(head(200, &typed, Framing::Close)),
                    sent(before),
                    Act::Drip(bytes.into(), DRIP),
                ];
                (acts, Some(late("no_progress")))
            }
            Self::Pings => {
                timeouts = timeouts.idle(Duration::from_secs(30)).progress(SHORT);
                let pings = api.ping().repeat(10_000);
                let acts = vec![
                    sent(head(200, &typed, Framing::Close)),
                    sent(before),
                    Act::Drip(pings.into(), DRIP),
                ];
                (acts, Some(late("no_progress")))
            }
            Self::Slow => {
                timeouts = timeouts.total(SHORT * 2);
                let acts = vec![
                    sent(head(200, &typed, Framing::Close)),
                    sent(before.clone()),
                    Act::Drip(bytes[before.len()..].repeat(3).into(), DRIP),
                ];
                (acts, Some(late("deadline")))
            }
            Self::EndlessLine => {
                let begun = match api {
                    Api::Ollama => "{\"x\":\"",
                    _ => "data: {\"x\":\"",
                };
                let begun = before + begun;
                let acts = vec![
                    sent(chunked(200)),
                    chunk(begun.as_bytes()),
                    flood(&[b'x'; 64]),
                ];
                (acts, Some(fails(TooLarge)))
            }
            Self::EndlessEvent => {
                let line: &[u8] = match api {
                    Api::Ollama => b"\n",
                    _ => b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
                };
                let acts = vec![sent(chunked(200)), chunk(before.as_bytes()), flood(line)];
                (acts, Some(fails(TooLarge)))
            }
            Self::EndlessBody => {
                let before = api.before_text();
                let mut acts = vec![sent(chunked(200))];
                acts.extend((!before.is_empty()).then(|| chunk(before.as_bytes())));
                acts.push(flood(api.text("and so on ").as_bytes()));
                (acts, Some(fails(TooLarge)))
            }
            Self::EndlessArguments => {
                let piece = answer.frames.iter().position(|f| f.contains(r#"{\"ci"#));
                let mut acts = vec![sent(chunked(200))];
                match piece {
                    Some(at) => {
                        acts.push(chunk(answer.frames[..at].concat().as_bytes()));
                        acts.push(flood(answer.frames[at].as_bytes()));
                    }
                    // They come whole.
                    None => {
                        let long = "x".repeat(limits().tool_arguments);
                        acts.push(chunk(
                            answer.frames.concat().replace("Zürich", &long).as_bytes(),
                        ));
                        acts.push(Act::Stall);
                    }
                }
                (acts, Some(fails(TooLarge)))
            }
            Self::ManyCalls => {
                let calls = api.calls(limits().tool_calls + 1);
                let acts = vec![sent(chunked(200)), chunk(calls.as_bytes()), Act::Stall];
                (acts, Some(fails(TooLarge)))
            }
            Self::EndlessError => {
                let acts = vec![sent(chunked(500)), flood(b"It is a long story. ")];
                (acts, Some(refused(Server, 500)))
            }
            Self::StalledError => {
                timeouts = timeouts.idle(SHORT);
                let acts = vec![sent(chunked(529)), chunk(b"{\"error\":{"), Act::Stall];
                (acts, Some(refused(Overloaded, 529)))
            }
            Self::CutError => {
                let head = head(500, &typed, Framing::Length(1000));
                (
                    vec![sent(head + "{\"error\":{")],
                    Some(refused(Server, 500)),
                )
            }
            Self::NoHttp => {
                let acts = vec![sent(&b"\x16\x03\x01\x02\xff\xfe\0 garbage\r\n\r\n"[..])];
                (acts, Some(fails(Connection)))
            }
            Self::NoChunk => {
                let acts = vec![
                    sent(chunked(200)),
                    chunk(before.as_bytes()),
                    sent("zzz\r\n"),
                ];
                (acts, Some(fails(Connection)))
            }
            Self::NoAnswer => {
                let typed = [("content-type", "application/octet-stream")];
                let body = format!("\u{1}~ {CANARY} \u{fffd}");
                (
                    whole(200, &typed, body.as_bytes(), dice),
                    Some(fails(Protocol)),
                )
            }
            Self::NoEvent => {
                let mut body = before.into_bytes();
                if api != Api::Ollama {
                    body.extend_from_slice(b"data: ");
                }
                body.extend_from_slice(b"\x01~\xff\xfe{garbage\n\n");
                (whole(200, &typed, &body, dice), Some(fails(Protocol)))
            }
            Self::Page => {
                let page = format!("<!DOCTYPE html><title>Sign in</title>{CANARY}");
                (
                    whole(200, &html, page.as_bytes(), dice),
                    Some(fails(Protocol)),
                )
            }
            Self::BadGateway => {
                let page = format!("<html><title>502 Bad Gateway</title>{CANARY}</html>");
                let acts = whole(502, &html, page.as_bytes(), dice);
                (acts, Some(refused(Server, 502)))
            }
            Self::Empty => (whole(200, &typed, b"", dice), Some(fails(Truncated))),
            Self::Redirect => {
                let status = [301, 302, 303, 307, 308][dice.below(5) as usize];
                let acts = whole(status, &[("location", elsewhere)], b"", dice);
                (acts, Some(refused(Protocol, status)))
            }
            Self::RateLimited => {
                let at = dice.below(RETRY_AFTER.len() as u64) as usize;
                let (name, value, retry_after) = RETRY_AFTER[at];
                let fails = Fails {
                    retry_after,
                    ..refused(RateLimited, 429)
                };
                (
                    whole(429, &[(name, value)], b"slow down", dice),
                    Some(fails),
                )
            }
            Self::Unavailable => {
                let status = [503, 529][dice.below(2) as usize];
                let acts = whole(status, &typed, b"", dice);
                (acts, Some(refused(Overloaded, status)))
            }
            Self::ErrorEvent => {
                let (event, code) = api.error();
                let body = before + &event;
                let fails = Fails {
                    code,
                    status: code.and_then(|code| code.parse().ok()),
                    ..fails(api.error_kind())
                };
                (whole(200, &typed, body.as_bytes(), dice), Some(fails))
            }
            Self::Restarted => {
                let body = before + &api.answer("second").frames.concat();
                (
                    whole(200, &typed, body.as_bytes(), dice),
                    Some(fails(Protocol)),
                )
            }
            Self::Compressed => {
                let mut body = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec();
                body.extend((0..200).map(|_| dice.next() as u8));
                let typed = [typed[0], ("content-encoding", "gzip")];
                (whole(200, &typed, &body, dice), Some(fails(Protocol)))
            }
        };
        Case {
            acts,
            timeouts,
            fails,
        }
    }
}
