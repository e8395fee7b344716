//! Replay over a socket, with the default HTTP client.

use crate::{Observed, Recording, Report, Server, compare, model, observe};
use concentric_core::ChatRequest;
use concentric_providers::HttpClient;
use serde_json::Value;
use std::{io, sync::Arc, time::Duration};

/// The time limit of a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads each recording over a socket, with the default HTTP client.
async fn over_socket(recordings: &Arc<[Recording]>) -> io::Result<Vec<Observed>> {
    let server = Server::start(Arc::clone(recordings)).await?;
    let client = HttpClient::new().map_err(io::Error::other)?;
    let mut all = Vec::with_capacity(recordings.len());
    for (index, recording) in recordings.iter().enumerate() {
        let url = server.base_url(index);
        let model = model(&recording.api, &url, recording.stream, client.clone())
            .ok_or_else(|| io::Error::other(format!("{} is not supported", recording.api)))?;
        let call = observe(model, ChatRequest::user("hi"));
        let observed = tokio::time::timeout(PATIENCE, call).await;
        all.push(observed.map_err(|_| io::Error::other(format!("{} hangs", recording.id)))?);
    }
    Ok(all)
}

/// Reads each recording over a socket, and compares the responses with their expectations.
///
/// # Errors
///
/// Returns an error if no socket is available, or a response does not end.
pub async fn replay(recordings: &Arc<[Recording]>) -> io::Result<Report> {
    let mut report = Report {
        files: recordings.len(),
        ..Report::default()
    };
    for (recording, observed) in recordings.iter().zip(over_socket(recordings).await?) {
        report.answers += 1;
        let mut deviations = Vec::new();
        let Some(differences) = compare(recording, &observed, &mut deviations) else {
            continue;
        };
        report.checked += 1;
        for name in deviations {
            *report.deviations.entry(name).or_default() += 1;
        }
        for difference in differences {
            report.differ(recording, "socket", difference);
        }
    }
    Ok(report)
}

/// Reads each recording over a socket, and returns the responses as JSON.
///
/// # Errors
///
/// Returns an error if no socket is available, or a response does not end.
pub async fn dump(recordings: &Arc<[Recording]>) -> io::Result<Vec<Value>> {
    let observed = over_socket(recordings).await?;
    Ok(recordings
        .iter()
        .zip(observed)
        .map(|(recording, observed)| {
            observed.to_json(&recording.id, recording.status, recording.stream)
        })
        .collect())
}
