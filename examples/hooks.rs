//! An agent with an audit log, which is written without delaying any event.
//!
//! ```console
//! $ cargo run --example hooks -- "which files are here?"
//! ```
//!
//! One value observes the run, its steps and its tool calls. It collects entries in the run's
//! state, and appends them to `audit.jsonl` (or `CONCENTRIC_AUDIT`) when the run ends, with any
//! outcome. The process waits for the write, and prints the entries of its run. If the process is
//! killed, the entries are lost; records that must not be lost belong in a ledger, which is written
//! before a tool runs (see `approval`).
//!
//! The files and the model are those of the quickstart.

use concentric::{
    AgentLayer, BoxError, ChatRequest, Context, Error, ErrorKind, Outcome, Str, ToolCall,
    ToolOutcome,
    event::StepFinish,
    hooks::{End, Flow, Hooks, Interest, Summary},
    layers::RequestDefaultsLayer,
    message::Arguments,
    state::{Scope, Slot, SlotError, Transient},
};
use quickstart::{files, model::model, terminal};
use serde_json::{Map, Value, json};
use std::{
    convert::Infallible,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, UNIX_EPOCH},
};
use tokio::{sync::mpsc, task::spawn_blocking};
use tower::{ServiceBuilder, ServiceExt};

/// Arguments that are logged; of all others, only the length is logged.
const HARMLESS: [&str; 5] = ["path", "depth", "first_line", "lines", "max_hits"];

/// The entries of a run so far. Each of several concurrent runs has its own.
struct Trail;

impl Slot for Trail {
    type Value = Vec<Str>;
    type Keep = Transient;
    const NAME: &'static str = "example/trail";
    const SCOPE: Scope = Scope::Run;
}

/// Records the activity of runs.
struct Audit {
    file: PathBuf,
    /// Each pending write holds a clone, so that the channel closes when all writes are done.
    writing: mpsc::Sender<Infallible>,
}

impl Hooks for Audit {
    fn id(&self) -> &str {
        "audit"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_RUN | Interest::STEP_FINISHED | Interest::AFTER_CALL | Interest::AFTER_RUN
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        let turns = request.transcript.len();
        note(&request.context, "run", &json!({"turns": turns}))?;
        Ok(Flow::Continue)
    }

    async fn step_finished(&self, step: &StepFinish, run: &Summary) -> Result<(), BoxError> {
        Ok(note(run.context(), "step", &json!(step))?)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let details = json!({
            "step": call.context.step(),
            "tool": short(call.name()),
            "arguments": shown(call.arguments()),
            "status": outcome.status,
            "bytes": outcome.content.text().len(),
            "seconds": took.as_secs_f64(),
        });
        note(&call.context, "call", &details)?;
        Ok(None)
    }

    async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
        let outcome = match end {
            End::Finished(finish) => json!(finish.outcome),
            // The message is not logged, because it may quote sensitive data.
            End::Failed(error) => json!({"failed": error.kind()}),
            End::Truncated => json!("truncated"),
            End::Dropped => json!("dropped"),
        };
        let details = json!({
            "outcome": outcome,
            "usage": run.usage(),
            "seconds": run.took().as_secs_f64(),
        });
        let context = run.context();
        note(context, "end", &details)?;

        let lines = context.state::<Trail>()?;
        let (file, writing) = (self.file.clone(), self.writing.clone());
        context.defer(async move {
            let written = spawn_blocking(move || append(&file, &lines)).await;
            if let Err(error) = written.map_err(io::Error::other).flatten() {
                terminal::status(format_args!("Failed to write the audit log: {error}"));
            }
            drop(writing);
        });
        Ok(())
    }
}

/// Adds an entry to the run.
fn note(context: &Context, what: &str, details: &Value) -> Result<(), SlotError> {
    let at = context.now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = json!({
        "run": context.run_id(),
        "at": at.as_secs_f64(),
        "what": what,
        "details": details,
    });
    let line = Str::from(line.to_string());
    // Only the list is copied; the entries are shared.
    context.update_state::<Trail>(|lines| lines.iter().chain([&line]).cloned().collect())?;
    Ok(())
}

/// Returns the part of a call's arguments that may be logged.
fn shown(arguments: &Arguments) -> Value {
    let Ok(Value::Object(arguments)) = serde_json::from_str(arguments.as_str()) else {
        return json!(format!("({} bytes)", arguments.as_str().len()));
    };
    let shown = arguments.into_iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) if HARMLESS.contains(&name.as_str()) => json!(short(&text)),
            Value::String(text) => json!(format!("({} bytes)", text.len())),
            Value::Number(number) if HARMLESS.contains(&name.as_str()) => json!(number),
            other => json!(format!("({} bytes)", other.to_string().len())),
        };
        (short(&name), value)
    });
    shown.collect::<Map<_, _>>().into()
}

/// Returns the first 60 characters of a text.
fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "…",
        None => text.to_owned(),
    }
}

/// Appends the entries of a run to the file in one write.
fn append(file: &Path, lines: &[Str]) -> io::Result<()> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(text.as_bytes())
}

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if question.trim().is_empty() {
        terminal::status("Usage: cargo run --example hooks -- QUESTION");
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
    let file = std::env::var_os("CONCENTRIC_AUDIT").unwrap_or_else(|| "audit.jsonl".into());
    let file = PathBuf::from(file);
    let (writing, mut written) = mpsc::channel(1);
    let audit = Audit {
        file: file.clone(),
        writing,
    };
    let agent = ServiceBuilder::new()
        .layer(RequestDefaultsLayer::new().system(
            "Answer questions about the files in the current folder. Inspect the files before you \
             answer. Be brief.",
        ))
        // Installed around the run and the tools, as its interest requires.
        .layer(
            AgentLayer::new(files::tools(".")?)
                .step_limit(16)
                .with(audit),
        )
        .service(model()?);

    let request = ChatRequest::user(question);
    let run = request.context.run_id().clone();
    let finish = match agent.oneshot(request).await {
        Ok(response) => terminal::show(response.body).await,
        Err(error) => Err(error),
    };
    // The response did not wait for the write, but the process must, or the write is lost.
    let _ = written.recv().await;

    for line in fs::read_to_string(&file).map_err(unreadable)?.lines() {
        let entry: Value = serde_json::from_str(line).map_err(unreadable)?;
        if entry.get("run").and_then(Value::as_str) == Some(run.as_str()) {
            terminal::note(line);
        }
    }
    Ok(finish?.outcome)
}

fn unreadable(error: impl Into<BoxError>) -> Error {
    let error: BoxError = error.into();
    Error::new(
        ErrorKind::Other,
        format!("failed to read the audit log: {error}"),
    )
}
