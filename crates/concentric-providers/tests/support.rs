//! The page of the docs that says what each service does is what the layers say.
//!
//! `WRITE_GOLDEN=1` writes it.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test")]

use concentric_core::{ChatRequest, Message, Transcript, Turn};
use concentric_providers::{
    AnthropicLayer, ApiKey, Capabilities, GeminiLayer, OllamaLayer, OpenAiLayer,
    OpenAiResponsesLayer, openai::Profile,
};
use std::{fmt::Write as _, path::PathBuf};

/// What a layer says: a field of [`Capabilities`], and what is in it.
type Said = Vec<(String, String)>;

/// Reads what `Debug` shows, which leaves no field out.
fn said(capabilities: &Capabilities) -> Said {
    let shown = format!("{capabilities:#?}");
    let mut said = Said::new();
    for line in shown.lines() {
        let Some((field, value)) = line.split_once(": ") else {
            continue;
        };
        let (field, value) = (field.trim(), value.trim_end_matches(','));
        if line.starts_with("        ") {
            // One of the sources of the medium above.
            if value == "true" {
                let sources = &mut said.last_mut().unwrap().1;
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
        said.push((field.to_owned(), value));
    }
    said
}

/// A request that ends with the assistant's words.
fn prefilled() -> ChatRequest {
    let mut transcript = Transcript::new();
    transcript.push_user("Count to three.");
    let words = Message::assistant("One, two,");
    transcript.push(Turn::message(words).unwrap());
    ChatRequest::new(transcript)
}

/// What a layer says. Whether it goes on with words depends on more than its capabilities.
macro_rules! said {
    ($layer:expr) => {{
        let layer = $layer;
        let mut capabilities = layer.supports();
        capabilities.prefill &= layer.check(&prefilled()).is_empty();
        said(&capabilities)
    }};
}

fn link(field: &str) -> String {
    format!("[`{field}`](crate::Capabilities::{field})")
}

/// The services of the APIs, field by field.
fn services() -> String {
    let key = || ApiKey::new("key");
    let services = [
        (
            "OpenAI, chat completions",
            "gpt-5.5",
            said!(OpenAiLayer::new("gpt-5.5", key())),
        ),
        (
            "OpenAI, Responses",
            "gpt-5.5",
            said!(OpenAiResponsesLayer::new("gpt-5.5", key())),
        ),
        (
            "Anthropic",
            "claude-opus-4-8",
            said!(AnthropicLayer::new("claude-opus-4-8", key())),
        ),
        (
            "Gemini",
            "gemini-3.5-flash",
            said!(GeminiLayer::new("gemini-3.5-flash", key())),
        ),
        ("Ollama", "qwen3", said!(OllamaLayer::new("qwen3"))),
    ];
    let mut table = String::from("| |");
    for (name, model, _) in &services {
        let _ = write!(table, " {name} (`{model}`) |");
    }
    table += "\n|---|";
    table += &"---|".repeat(services.len());
    for (row, (field, _)) in services[0].2.iter().enumerate() {
        let _ = write!(table, "\n| {} |", link(field));
        for (.., said) in &services {
            assert_eq!(said[row].0, *field);
            let _ = write!(table, " {} |", said[row].1);
        }
    }
    table
}

/// The services that speak chat completions, and what they do not do.
fn profiles() -> String {
    let all = said(&Capabilities::all());
    let mut table = String::from("| profile | key | all but |\n|---|---|---|");
    for profile in Profile::ALL {
        let layer = OpenAiLayer::profile(*profile, "a-model", Some(ApiKey::new("key")));
        let said = said!(layer);
        let differs = said.iter().zip(&all).filter(|(said, all)| said != all);
        let (no, some): (Vec<_>, Vec<_>) = differs
            .map(|(said, _)| said)
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
fn the_page_of_what_services_do_is_what_the_layers_say() {
    let page = format!(
        "What each service does, as its layer says \
         ([`ProviderLayer::supports`](crate::ProviderLayer::supports)).\n\n\
         It is what a layer lets through. Of Anthropic's and Gemini's models, it depends on the model: \
         here it is of the one named. What a single model of a service can't do besides, the layer is \
         told ([`capabilities`](crate::ProviderLayer::capabilities)). A call that asks for more is \
         refused before it is sent ([`check`](crate::ProviderLayer::check)).\n\n\
         {}\n\n\
         # Services that speak chat completions\n\n\
         By [`Profile`](crate::openai::Profile): each does all that \
         [`Capabilities`](crate::Capabilities) names, but for what stands here.\n\n\
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
fn what_a_layer_is_told_is_what_it_supports() {
    let mut told = Capabilities::all();
    told.tools = false;
    let layer = OllamaLayer::new("m");
    assert!(layer.supports().tools);
    assert_eq!(layer.capabilities(told).supports(), told);
}

#[test]
fn every_kind_of_a_field_is_read() {
    let mut capabilities = Capabilities::all();
    capabilities.tools = false;
    capabilities.stop = 4;
    capabilities.audio = concentric_providers::Sources::NONE;
    let said = said(&capabilities);
    let of = |name: &str| {
        let found = said.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(said.len(), 16);
    assert_eq!(of("tools"), Some("no"));
    assert_eq!(of("seed"), Some("yes"));
    assert_eq!(of("audio"), Some("no"));
    assert_eq!(of("images"), Some("base64, URL, id"));
    assert_eq!(of("stop"), Some("up to 4"));
}
