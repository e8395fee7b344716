//! The settings for OpenAI, or a server that speaks its protocol, from the environment.

use concentric::{Error, providers::ApiKey};
use std::env;

/// Where the model is, and what opens it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `OPENAI_BASE_URL`, as `http://127.0.0.1:11434/v1`; the default is OpenAI's own.
    pub base_url: String,
    /// `OPENAI_MODEL`; the default is `gpt-5.5`.
    pub model: String,
    /// `OPENAI_API_KEY`; a server of your own may need none.
    pub key: Option<ApiKey>,
}

/// Reads the settings; `None` if there is neither a key nor an address.
///
/// # Errors
///
/// There is a key, and it is not Unicode.
pub fn settings() -> Result<Option<Settings>, Error> {
    let read = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
    let key = match env::var_os("OPENAI_API_KEY") {
        Some(key) if !key.is_empty() => Some(ApiKey::from_env("OPENAI_API_KEY")?),
        _ => None,
    };
    let base_url = read("OPENAI_BASE_URL");
    if key.is_none() && base_url.is_none() {
        return Ok(None);
    }
    Ok(Some(Settings {
        base_url: base_url.unwrap_or_else(|| "https://api.openai.com/v1".to_owned()),
        model: read("OPENAI_MODEL").unwrap_or_else(|| "gpt-5.5".to_owned()),
        key,
    }))
}
