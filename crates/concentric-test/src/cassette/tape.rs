//! The recordings and their file format.

use super::redaction::{GONE, Redaction};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use http::{HeaderMap, header};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// The version of the format, in the first line of a file.
pub(super) const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) concentric_cassette: u32,
}

/// One call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Exchange {
    pub(super) request: Request,
    /// `None` if the call ended before the response head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<Response>,
    pub(super) end: End,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) query: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Content,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) status: u16,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Content,
    /// The end offset of each chunk of the body, in bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cuts: Vec<usize>,
    /// The arrival time of each chunk, in milliseconds since the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) times: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Json(Value),
    Text(String),
    Base64(String),
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Finished,
    Dropped,
    Failed {
        kind: ErrorKind,
        message: String,
    },
    /// The body was not recorded, for this reason.
    Lost(String),
}

impl Content {
    pub(super) fn json(bytes: Vec<u8>) -> Self {
        match serde_json::from_slice(&bytes) {
            Ok(value) => Self::Json(value),
            Err(_) => Self::text(bytes),
        }
    }

    pub(super) fn text(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Base64(STANDARD.encode(error.as_bytes())),
        }
    }

    fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Json(value) => Some(value.to_string().into()),
            Self::Text(text) => Some(text.clone().into()),
            Self::Base64(text) => STANDARD.decode(text).ok().map(Bytes::from),
        }
    }
}

impl Request {
    /// Creates the record of a request, without secrets.
    pub(super) fn new(request: &http::Request<Full<Bytes>>, redaction: &Redaction) -> Self {
        let body = match is_encoded(request.headers()) {
            // Compressed bytes cannot be searched for secrets.
            true => Content::Text(GONE.to_owned()),
            false => Content::json(redaction.bytes(&whole(request.body()), &[]).0),
        };
        Self {
            method: request.method().to_string(),
            path: redaction.path(request.uri()),
            query: redaction.parameters(request.uri()),
            headers: redaction.headers(request.headers()),
            body,
        }
    }
}

/// Returns `true` if a body is compressed. Like the providers' layers, ignores values of
/// `content-encoding` that are no compression, such as `none` and `utf-8`.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    const CODINGS: [&str; 6] = ["br", "compress", "deflate", "gzip", "x-gzip", "zstd"];
    let codings = headers.get_all(header::CONTENT_ENCODING).into_iter();
    codings
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let coding = coding.trim();
            CODINGS
                .iter()
                .any(|known| coding.eq_ignore_ascii_case(known))
        })
}

/// Returns the bytes of a body.
fn whole(body: &Full<Bytes>) -> Bytes {
    let mut body = std::pin::pin!(body.clone());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match http_body::Body::poll_frame(body.as_mut(), &mut cx) {
        std::task::Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

impl Response {
    /// Returns the chunks of the body, or `None` if the recording is invalid.
    pub(super) fn pieces(&self) -> Option<Vec<Bytes>> {
        let body = self.body.bytes()?;
        let mut pieces = Vec::with_capacity(self.cuts.len() + 1);
        let mut at = 0;
        for cut in &self.cuts {
            if *cut < at || *cut > body.len() {
                return None;
            }
            pieces.push(body.slice(at..*cut));
            at = *cut;
        }
        if at < body.len() {
            pieces.push(body.slice(at..));
        }
        Some(pieces)
    }
}

/// Replaces a file atomically: a reader sees either the old content or the new.
pub(super) fn write<'a>(path: &Path, lines: impl Iterator<Item = &'a str>) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut text = serde_json::to_string(&Header {
        concentric_cassette: VERSION,
    })?;
    text.push('\n');
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut temporary = name.to_owned();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}-{count}.tmp", std::process::id()));
    let temporary: PathBuf = path.with_file_name(temporary);
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Vec<Exchange>, Error> {
    let wrong = |what: &str| {
        let what = format!("{}: {what}", path.display());
        Error::new(ErrorKind::Configuration, what)
    };
    let text = fs::read_to_string(path)
        .map_err(|error| wrong("the cassette cannot be read").with_source(error))?;
    let mut lines = text.lines().enumerate();
    let header = lines.next().map(|(_, line)| serde_json::from_str(line));
    match header {
        Some(Ok(Header {
            concentric_cassette: VERSION,
        })) => {}
        Some(Ok(_)) => return Err(wrong("the cassette has an unsupported version")),
        _ => return Err(wrong("the file is not a cassette")),
    }
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| {
                wrong(&format!("line {} is not a recording", index + 1)).with_source(error)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn compression_is_detected_as_in_the_providers() {
        let cases: [(&[&'static str], bool); 8] = [
            (&[], false),
            (&["identity"], false),
            (&["none"], false),
            (&["utf-8"], false),
            (&["GZip"], true),
            (&["identity, br"], true),
            (&["identity", "zstd"], true),
            (&["x-gzip"], true),
        ];
        for (values, expected) in cases {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(is_encoded(&headers), expected, "{values:?}");
        }
    }
}
