//! Recorded answers of providers, read by the provider layers.

use concentric_http::{ClientPolicy, openai::OpenAi};
use concentric_replay::{direct, load, model};
use std::{io, path::Path};

/// A server with a model for each recording in `dir`, which answers every request with it.
pub(super) fn api(dir: &Path) -> io::Result<OpenAi> {
    // The media at the URLs of the recorded requests are not fetched.
    let policy = ClientPolicy::new().system_messages(true).media_host("*");
    let mut api = OpenAi::new().client_policy(policy).reasoning(true);
    for name in ["openai-chat", "openai-responses"] {
        for recording in load(dir, name)? {
            let http = direct(&recording, recording.pieces());
            let model = model(name, "http://replay.test", recording.stream, http);
            if let Some(model) = model {
                api = api.model(recording.id, model);
            }
        }
    }
    Ok(api)
}
