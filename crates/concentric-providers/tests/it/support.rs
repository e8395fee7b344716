//! Compares the documentation page of supported features with the layers.
//!
//! `WRITE_GOLDEN=1` writes the page.

use concentric_core::{ChatRequest, Message, Transcript, Turn};
use concentric_providers::{
    AnthropicLayer, ApiKey, Capabilities, GeminiLayer, OllamaLayer, OpenAiLayer,
    OpenAiResponsesLayer, openai::Profile,
};
use std::{fmt::Write as _, path::PathBuf};

/// The capabilities of a layer: the fields of [`Capabilities`] and their values.
type Features = Vec<(String, String)>;

/// Parses the `Debug` output, which contains every field.
fn features(capabilities: &Capabilities) -> Features {
    let shown = format!("{capabilities:#?}");
    let mut features = Features::new();
    for line in shown.lines() {
        let Some((field, value)) = line.split_once(": ") else {
            continue;
        };
        let (field, value) = (field.trim(), value.trim_end_matches(','));
        if line.starts_with("        ") {
            // A source of the medium above.
            if value == "true" {
                let sources = &mut features.last_mut().unwrap().1;
                let source = if field == "url" { "URL" } else { field };
                *sources = match &**sources {
                    "no" => source.to_owned(),
                    others => format!("{others}, {source}"),
                };
            }
            continue;
        }
        let value = match value {
            "true" => "yes".to_owned(),
            "false" | "0" | "Sources {" => "no".to_owned(),
            most if most == usize::MAX.to_string() => "any number".to_owned(),
            most => {
                let most: usize = most.parse().unwrap();
                format!("up to {most}")
            }
        };
        features.push((field.to_owned(), value));
    }
    features
}

/// A request with a prefilled assistant message.
fn prefilled() -> ChatRequest {
    let mut transcript = Transcript::new();
    transcript.push_user("Count to three.");
    let words = Message::assistant("One, two,");
    transcript.push(Turn::message(words).unwrap());
    ChatRequest::new(transcript)
}

/// The capabilities of a layer. Prefill also depends on its check.
macro_rules! features {
    ($layer:expr) => {{
        let layer = $layer;
        let mut capabilities = layer.supports();
        capabilities.prefill &= layer.check(&prefilled()).is_empty();
        features(&capabilities)
    }};
}

fn link(field: &str) -> String {
    format!("[`{field}`](crate::Capabilities::{field})")
}

/// The table of the APIs, with a row for each field.
fn services() -> String {
    let key = || ApiKey::new("key");
    let services = [
        (
            "OpenAI, chat completions",
            "gpt-5.5",
            features!(OpenAiLayer::new("gpt-5.5", key())),
        ),
        (
            "OpenAI, Responses",
            "gpt-5.5",
            features!(OpenAiResponsesLayer::new("gpt-5.5", key())),
        ),
        (
            "Anthropic",
            "claude-opus-4-8",
            features!(AnthropicLayer::new("claude-opus-4-8", key())),
        ),
        (
            "Gemini",
            "gemini-3.5-flash",
            features!(GeminiLayer::new("gemini-3.5-flash", key())),
        ),
        ("Ollama", "qwen3", features!(OllamaLayer::new("qwen3"))),
    ];
    let mut table = String::from("| |");
    for (name, model, _) in &services {
        let _ = write!(table, " {name} (`{model}`) |");
    }
    table += "\n|---|";
    table += &"---|".repeat(services.len());
    for (row, (field, _)) in services[0].2.iter().enumerate() {
        let _ = write!(table, "\n| {} |", link(field));
        for (.., features) in &services {
            assert_eq!(features[row].0, *field);
            let _ = write!(table, " {} |", features[row].1);
        }
    }
    table
}

/// The table of the chat completions services and their exceptions.
fn profiles() -> String {
    let all = features(&Capabilities::all());
    let mut table = String::from("| profile | key | exceptions |\n|---|---|---|");
    for profile in Profile::ALL {
        let layer = OpenAiLayer::profile(*profile, "a-model", Some(ApiKey::new("key")));
        let features = features!(layer);
        let differs = features
            .iter()
            .zip(&all)
            .filter(|(features, all)| features != all);
        let (no, some): (Vec<_>, Vec<_>) = differs
            .map(|(features, _)| features)
            .partition(|(_, value)| value == "no");
        let mut but: Vec<String> = no
            .iter()
            .map(|(field, _)| format!("no `{field}`"))
            .collect();
        but.extend(
            some.iter()
                .map(|(field, value)| format!("`{field}`: {value}")),
        );
        let keys: Vec<String> = profile.key_env.iter().map(|k| format!("`{k}`")).collect();
        let _ = write!(
            table,
            "\n| `{}` | {} | {} |",
            profile.name,
            keys.join(", "),
            but.join("; ")
        );
    }
    table
}

#[test]
fn the_support_page_matches_the_layers() {
    let page = format!(
        "The features that each service supports, as reported by its layer \
         ([`ProviderLayer::supports`](crate::ProviderLayer::supports)).\n\n\
         For Anthropic and Gemini, the features depend on the model; the table shows the named one. \
         Restrictions of a single model are configured on the layer \
         ([`capabilities`](crate::ProviderLayer::capabilities)). A call that needs more is rejected \
         before it is sent ([`check`](crate::ProviderLayer::check)).\n\n\
         {}\n\n\
         # Services with the chat completions API\n\n\
         By [`Profile`](crate::openai::Profile): each supports everything that \
         [`Capabilities`](crate::Capabilities) lists, except as noted.\n\n\
         {}\n",
        services(),
        profiles(),
    );
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/support.md");
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept, page, "`WRITE_GOLDEN=1` writes it");
}

#[test]
fn configured_capabilities_are_reported() {
    let mut configured = Capabilities::all();
    configured.tools = false;
    let layer = OllamaLayer::new("m");
    assert!(layer.supports().tools);
    assert_eq!(layer.capabilities(configured).supports(), configured);
}

#[test]
fn every_field_type_is_read() {
    let mut capabilities = Capabilities::all();
    capabilities.tools = false;
    capabilities.stop = 4;
    capabilities.audio = concentric_providers::Sources::NONE;
    let features = features(&capabilities);
    let of = |name: &str| {
        let found = features.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(features.len(), 16);
    assert_eq!(of("tools"), Some("no"));
    assert_eq!(of("seed"), Some("yes"));
    assert_eq!(of("audio"), Some("no"));
    assert_eq!(of("images"), Some("base64, URL, id"));
    assert_eq!(of("stop"), Some("up to 4"));
}
