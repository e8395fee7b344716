use crate::{Observed, Recording, Rng, cuts, direct, observe};
use bytes::Bytes;
use concentric_core::{BoxError, BoxModel, ChatRequest, Error};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use http_body_util::Full;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tower::{Layer, Service};

/// The result of replaying recordings.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The number of recordings.
    pub files: usize,
    /// The number of recordings with reliable expectations.
    pub checked: usize,
    /// The number of responses that were read.
    pub answers: usize,
    /// The number of these whose body came in other chunks than recorded.
    pub splits: usize,
    /// The number of these whose body was truncated.
    pub truncations: usize,
    /// The expected deviations, with their counts.
    pub deviations: BTreeMap<&'static str, usize>,
    /// The differences, each with the id of its recording.
    pub differences: Vec<String>,
}

impl Report {
    /// Returns the counts as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "files": self.files,
            "checked": self.checked,
            "answers": self.answers,
            "splits": self.splits,
            "truncations": self.truncations,
            "deviations": self.deviations,
            "differences": self.differences.len(),
        })
    }

    pub(crate) fn differ(
        &mut self,
        recording: &Recording,
        how: &str,
        what: impl std::fmt::Display,
    ) {
        self.differences
            .push(format!("{} [{how}] {what}", recording.id));
    }
}

/// The APIs whose recordings can be replayed.
pub const APIS: &[&str] = &[
    "anthropic-messages",
    "gemini-generate",
    "ollama-chat",
    "ollama-generate",
    "openai-chat",
    "openai-responses",
];

/// Creates a model that reads recordings of `api` over `http`; `None` if `api` is not in [`APIS`].
pub fn model<S, RB>(api: &str, base_url: &str, stream: bool, http: S) -> Option<BoxModel>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<RB>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let key = ApiKey::new("replay-key");
    Some(match api {
        "anthropic-messages" => {
            let layer = AnthropicLayer::compatible(base_url, "replay-model", Some(key));
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "openai-chat" => {
            let layer = OpenAiLayer::compatible(base_url, "replay-model", Some(key));
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "ollama-chat" => {
            let layer = OllamaLayer::new("replay-model").base_url(base_url);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "ollama-generate" => {
            let layer = OllamaLayer::new("replay-model")
                .base_url(base_url)
                .generate();
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "gemini-generate" => {
            let layer = GeminiLayer::new("replay-model", key).base_url(base_url);
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        "openai-responses" => {
            let layer = OpenAiResponsesLayer::compatible(base_url, "replay-model", Some(key));
            BoxModel::new(layer.streaming(stream).layer(http))
        }
        _ => return None,
    })
}

/// Reads a recording without a socket, its body in `pieces`.
async fn in_pieces(recording: &Recording, pieces: Vec<Bytes>) -> Option<Observed> {
    let (http, stream) = (direct(recording, pieces), recording.stream);
    let model = model(&recording.api, "http://replay.test", stream, http)?;
    Some(observe(model, ChatRequest::user("hi")).await)
}

/// Reads each recording in one chunk, one byte at a time, and split at random positions `splits`
/// times, and compares the results with each other.
pub async fn split(recordings: &[Recording], splits: usize, rng: &mut Rng, report: &mut Report) {
    for recording in recordings {
        let Some(whole) = in_pieces(recording, vec![recording.body.clone()]).await else {
            continue;
        };
        report.answers += 1;
        let bytes = (0..recording.body.len()).map(|at| recording.body.slice(at..=at));
        let mut ways = vec![("one byte at a time".to_owned(), bytes.collect::<Vec<_>>())];
        for split in 0..splits {
            let count = 1 + rng.below(64);
            let mut places: Vec<usize> = (0..count)
                .map(|_| rng.below(recording.body.len()))
                .collect();
            places.sort_unstable();
            let mut rest = recording.body.clone();
            let mut cut = 0;
            let mut pieces = Vec::with_capacity(count + 1);
            for place in places {
                pieces.push(rest.split_to(place - cut));
                cut = place;
            }
            pieces.push(rest);
            ways.push((format!("split {split} of {count} cuts"), pieces));
        }
        for (way, pieces) in ways {
            let Some(observed) = in_pieces(recording, pieces).await else {
                continue;
            };
            report.answers += 1;
            report.splits += 1;
            if let Some(difference) = differ(&whole, &observed) {
                report.differ(recording, &way, difference);
            }
        }
    }
}

fn differ(one: &Observed, other: &Observed) -> Option<String> {
    if let Some(at) = (0..one.events.len().max(other.events.len()))
        .find(|at| one.events.get(*at) != other.events.get(*at))
    {
        let (one, other) = (one.events.get(at), other.events.get(at));
        return Some(format!("event {at}: {one:?} became {other:?}"));
    }
    let error = |error: &Option<Error>| error.as_ref().map(|error| format!("{error:?}"));
    (error(&one.error) != error(&other.error)
        || one.head != other.head
        || one.refused != other.refused
        || one.broken != other.broken)
        .then(|| format!("{one:?} became {other:?}"))
}

/// Truncates each recording at every boundary of its events and at `more` random positions. Before
/// the terminal event the response must be truncated, after it complete.
pub async fn truncate(recordings: &[Recording], more: usize, rng: &mut Rng, report: &mut Report) {
    for recording in recordings.iter().filter(|r| (200..300).contains(&r.status)) {
        let Some(whole) = in_pieces(recording, vec![recording.body.clone()]).await else {
            continue;
        };
        for cut in cuts(recording, more, rng) {
            let left = vec![recording.body.slice(..cut.length.min(recording.body.len()))];
            let Some(observed) = in_pieces(recording, left).await else {
                continue;
            };
            report.answers += 1;
            report.truncations += 1;
            if let Some(wrong) = truncated(&whole, &observed, cut.whole) {
                report.differ(
                    recording,
                    &format!("ended after {} bytes", cut.length),
                    wrong,
                );
            }
        }
    }
}

/// Returns the fault of `observed`, a truncated form of `full`, if there is one.
fn truncated(full: &Observed, observed: &Observed, whole: Option<bool>) -> Option<String> {
    let kind = observed.error.as_ref().map(Error::kind);
    let kept = observed.events.len() <= full.events.len()
        && observed
            .events
            .iter()
            .eq(full.events.iter().take(observed.events.len()));
    let calls = observed.has_calls_to_execute();
    if let Some(broken) = observed.broken {
        return Some(broken.to_owned());
    }
    match (whole, kind) {
        (Some(true), _) if full.error.is_some() => None,
        (None, None) | (Some(true), None) => {
            let same = observed.text() == full.text()
                && observed.reasoning() == full.reasoning()
                && observed.tool_calls() == full.tool_calls();
            (!same).then(|| "a complete response has other content".to_owned())
        }
        (Some(true), Some(kind)) => Some(format!("a complete response failed: {kind}")),
        (Some(false), None) => Some("no error".to_owned()),
        _ if calls => Some("a tool call of a truncated response".to_owned()),
        // The service's own error may come first.
        (_, kind) if kind == full.error.as_ref().map(Error::kind) => None,
        (_, Some(concentric_core::ErrorKind::Truncated)) if kept => None,
        (_, Some(concentric_core::ErrorKind::Truncated)) => {
            Some("the partial response is not a prefix of the complete one".to_owned())
        }
        (_, kind) => Some(format!("failed as {kind:?}")),
    }
}
