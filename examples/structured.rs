//! An agent whose output is a typed value, which is shown while it streams.
//!
//! ```console
//! $ cargo run --example structured -- "which files are here?"
//! ```
//!
//! Partial values are printed to stderr, one line for each change. The final value is printed to
//! stdout once it is complete and matches its type. The files and the model are those of the
//! quickstart.

use concentric::{
    AgentLayer, ChatRequest, Error, Event, Outcome, layers::RequestDefaultsLayer, tools::output,
};
use futures_util::StreamExt;
use quickstart::{files, model::model, terminal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::{fmt, future::ready, process::ExitCode};
use tower::{ServiceBuilder, ServiceExt};

/// A description of a folder.
#[derive(Deserialize, JsonSchema)]
struct Folder {
    /// What the folder is for, in a sentence.
    purpose: String,
    /// The files that matter most.
    #[schemars(length(max = 20))]
    files: Vec<File>,
}

#[derive(Deserialize, JsonSchema)]
struct File {
    /// Relative to the current folder.
    path: String,
    bytes: u64,
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.purpose)?;
        self.files
            .iter()
            .try_for_each(|File { path, bytes }| writeln!(f, "{bytes:>8}  {path}"))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if question.trim().is_empty() {
        terminal::status("Usage: cargo run --example structured -- QUESTION");
        return ExitCode::from(2);
    }
    match ask(question).await {
        Ok(Outcome::Completed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn ask(question: String) -> Result<Outcome, Error> {
    let folder = output::<Folder>("folder");
    let agent =
        ServiceBuilder::new()
            .layer(RequestDefaultsLayer::new().system(
                "Answer questions about the files in the current folder. Inspect them first.",
            ))
            // A value that does not match is corrected before the run may finish.
            .layer(AgentLayer::new(files::tools(".")?).gate(folder.gate()))
            // The model receives the schema. With `.separately()`, the value is requested in another
            // call, after the model has answered in text.
            .layer(folder.clone())
            .service(model()?);

    let response = agent.oneshot(ChatRequest::user(question)).await?;
    // A string is shown once it is complete; otherwise each word of it would print a line.
    let mut partials = folder.partials::<Value>().whole_strings();
    let others = response.body.filter(|event| {
        if let Ok(event) = event
            && let Some(value) = partials.push(event)
        {
            terminal::note(&value.to_string());
        }
        // The text is the value, which has been shown already.
        ready(!matches!(event, Ok(Event::TextDelta(_))))
    });
    let finish = terminal::show(others).await?;
    terminal::summary(&finish);
    if finish.outcome == Outcome::Completed {
        terminal::print(&folder.of_finish(&finish)?.to_string())?;
    }
    Ok(finish.outcome)
}
