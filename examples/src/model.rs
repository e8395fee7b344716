//! The model that the examples ask.

use crate::{
    offline::{self, Offline},
    openai, terminal,
};
use concentric::{
    BoxModel, Error,
    providers::{HttpClient, OpenAiLayer},
};
use std::time::Duration;
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_http::trace::TraceLayer;

/// A model behind HTTP, or the stand-in: both are the same to the agent.
///
/// # Errors
///
/// The settings are wrong, or there can be no HTTP client.
pub fn model() -> Result<BoxModel, Error> {
    let Some(settings) = openai::settings()? else {
        terminal::say(offline::NOTICE);
        return Ok(BoxModel::new(
            Offline::new().pace(Duration::from_millis(12)),
        ));
    };
    let model = ServiceBuilder::new()
        // A model's future ends when its first words are there, so this is the time they may take.
        .layer(TimeoutLayer::new(Duration::from_secs(120)))
        // Chat outside, HTTP inside.
        .layer(OpenAiLayer::compatible(
            settings.base_url,
            settings.model,
            settings.key,
        ))
        .layer(TraceLayer::new_for_http())
        .service(HttpClient::new()?);
    Ok(BoxModel::new(model))
}
