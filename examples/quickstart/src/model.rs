//! The model of the examples.

use crate::{
    offline::{self, Offline},
    provider::Provider,
    terminal,
};
use concentric::{BoxModel, Error, providers::HttpClient};
use std::time::Duration;
use tower::{Layer, ServiceBuilder, timeout::TimeoutLayer};
use tower_http::trace::TraceLayer;

/// Creates a model of the provider that the environment selects, or the offline stand-in. The agent
/// treats both alike.
///
/// # Errors
///
/// Returns an error if the settings are invalid, or no HTTP client can be created.
pub fn model() -> Result<BoxModel, Error> {
    let Some(provider) = Provider::chosen()? else {
        terminal::status(offline::NOTICE);
        return Ok(BoxModel::new(
            Offline::new().pace(Duration::from_millis(12)),
        ));
    };
    let http = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .service(HttpClient::new()?);
    // A model's future resolves with the first content, so this limits the time to it.
    let timeout = TimeoutLayer::new(Duration::from_secs(120));
    Ok(BoxModel::new(timeout.layer(provider.over(http))))
}
