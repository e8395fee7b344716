//! The model that the examples ask.

use crate::{
    offline::{self, Offline},
    provider::Provider,
    terminal,
};
use concentric::{BoxModel, Error, providers::HttpClient};
use std::time::Duration;
use tower::{Layer, ServiceBuilder, timeout::TimeoutLayer};
use tower_http::trace::TraceLayer;

/// A model of the provider that the environment has a key for, or the stand-in: all are the same to
/// the agent.
///
/// # Errors
///
/// The settings are wrong, or there can be no HTTP client.
pub fn model() -> Result<BoxModel, Error> {
    let Some(provider) = Provider::chosen()? else {
        terminal::say(offline::NOTICE);
        return Ok(BoxModel::new(
            Offline::new().pace(Duration::from_millis(12)),
        ));
    };
    let http = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .service(HttpClient::new()?);
    // A model's future ends when its first words are there, so this is the time they may take.
    let timeout = TimeoutLayer::new(Duration::from_secs(120));
    Ok(BoxModel::new(timeout.layer(provider.over(http))))
}
