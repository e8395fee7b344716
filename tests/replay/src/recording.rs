use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

/// One recorded response, with the expectations for its reader.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// The id.
    pub id: String,
    /// The API, such as `openai-chat`.
    pub api: String,
    /// Whether the request asked for a stream.
    pub stream: bool,
    /// Tags for notable properties of the response.
    pub features: Vec<String>,
    /// The HTTP status.
    pub status: u16,
    /// The headers, without those of the connection.
    pub headers: HeaderMap,
    /// The decoded body.
    pub body: Bytes,
    /// The lengths of the chunks as they were received, if recorded.
    pub chunk_lens: Vec<usize>,
    /// The result of another library's parser.
    pub expected: Option<Value>,
}

#[derive(Deserialize)]
struct File {
    id: String,
    api: String,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    features: Vec<String>,
    response: Response,
    expected: Option<Value>,
}

#[derive(Deserialize)]
struct Response {
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body_encoding: String,
    #[serde(default)]
    body: String,
    chunk_lens: Option<Vec<usize>>,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not a recording.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file: File = serde_json::from_slice(&std::fs::read(path)?)?;
        let response = file.response;
        let body = match &*response.body_encoding {
            "base64" => STANDARD
                .decode(&response.body)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            _ => response.body.into_bytes(),
        };
        Ok(Self {
            id: file.id,
            api: file.api,
            stream: file.stream,
            features: file.features,
            status: response.status,
            headers: headers(&response.headers),
            body: body.into(),
            chunk_lens: response.chunk_lens.unwrap_or_default(),
            expected: file.expected,
        })
    }

    /// Returns `true` if the recording has the tag `feature`.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|f| f == feature)
    }

    /// Returns the body in the recorded chunks, or in one.
    pub fn pieces(&self) -> Vec<Bytes> {
        let mut rest = self.body.clone();
        let mut pieces: Vec<Bytes> = self
            .chunk_lens
            .iter()
            .map(|length| rest.split_to((*length).min(rest.len())))
            .collect();
        pieces.push(rest);
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }
}

/// Removes the headers of the connection and of the encoding.
fn headers(all: &BTreeMap<String, String>) -> HeaderMap {
    const DROPPED: [&str; 6] = [
        "connection",
        "content-encoding",
        "content-length",
        "keep-alive",
        "transfer-encoding",
        "upgrade",
    ];
    all.iter()
        .filter(|(name, _)| !DROPPED.contains(&&*name.to_ascii_lowercase()))
        .filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        })
        .collect()
}

/// Reads all recordings of `api` in `dir` and below, sorted by id.
///
/// # Errors
///
/// Returns an error if a directory or a file cannot be read, or a file is not a recording.
pub fn load(dir: &Path, api: &str) -> io::Result<Vec<Recording>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let recording = Recording::read(&path).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })?;
                if recording.api == api {
                    found.push(recording);
                }
            }
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Returns the directory of the recordings: `CONCENTRIC_RECORDINGS`, or `../shared/recordings/dev`
/// beside the workspace; `None` if it does not exist.
pub fn default_dir() -> Option<PathBuf> {
    let dir = match std::env::var_os("CONCENTRIC_RECORDINGS") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/recordings/dev"),
    };
    dir.is_dir().then_some(dir)
}
