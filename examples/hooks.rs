//! An agent that leaves an audit trail, without an event waiting for the disk.
//!
//! ```console
//! $ cargo run --example hooks -- "what is in this folder?"
//! ```
//!
//! One value is told of the run, its steps and its tool calls. What it has to say is kept in the run,
//! and appended to `audit.jsonl`, or where `CONCENTRIC_AUDIT` says, once the run is over, however it
//! ended. The process waits for that, and shows what it reads there. One that is killed leaves
//! nothing: what must not be lost goes into a ledger, before the tool runs (see `approval`).
//!
//! The files and the model are those of the quickstart.

use concentric::{
    AgentLayer, Arguments, BoxError, ChatRequest, Context, Error, ErrorKind, Outcome, StepFinish,
    Str, ToolCall, ToolOutcome,
    layers::{
        DefaultsLayer, End,
        hooks::{AgentHooks, Hooks, RunFlow, Summary},
    },
    state::{Scope, Slot, SlotError, Transient},
};
use concentric_examples::{files, model::model, terminal};
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

/// The arguments that tools get nothing secret in; of the others, the audit says how long they are.
const HARMLESS: [&str; 5] = ["path", "depth", "first_line", "lines", "max_hits"];

/// The lines of a run so far. Many runs may go on at once, and each has its own.
struct Trail;

impl Slot for Trail {
    type Value = Vec<Str>;
    type Keep = Transient;
    const NAME: &'static str = "example/trail";
    const SCOPE: Scope = Scope::Run;
}

/// Writes down what runs do.
struct Audit {
    file: PathBuf,
    /// Each write that is under way has a clone: when there is none any more, all is written.
    writing: mpsc::Sender<Infallible>,
}

impl Hooks for Audit {
    fn id(&self) -> &str {
        "audit"
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<RunFlow, BoxError> {
        let turns = request.transcript.len();
        note(&request.context, "run", &json!({"turns": turns}))?;
        Ok(RunFlow::Continue)
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
            // Its message may quote what is not for the audit.
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
                terminal::say(format_args!("The audit can't be written: {error}"));
            }
            drop(writing);
        });
        Ok(())
    }
}

/// Keeps a line in its run.
fn note(context: &Context, what: &str, details: &Value) -> Result<(), SlotError> {
    let at = context.now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = json!({
        "run": context.run_id(),
        "at": at.as_secs_f64(),
        "what": what,
        "details": details,
    });
    let line = Str::from(line.to_string());
    // The lines are shared, and only the list of them is copied.
    context.update_state::<Trail>(|lines| lines.iter().chain([&line]).cloned().collect())?;
    Ok(())
}

/// What the audit may hold of a call's arguments.
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

/// The beginning of a text.
fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "…",
        None => text.to_owned(),
    }
}

/// Writes the lines of a run behind those of others, all in one piece.
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
        terminal::say("Usage: cargo run --example hooks -- \"what is in this folder?\"");
        return ExitCode::from(2);
    }
    match ask(question).await {
        Ok(Outcome::Completed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            terminal::complain(&error);
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
        .layer(DefaultsLayer::new().system(
            "You answer questions about the files of the current folder. Look before you answer, \
             and be brief.",
        ))
        // At the run, between the steps, at the model and at the tools: wherever it has a method.
        .layer(
            AgentLayer::new(files::tools(".")?)
                .step_limit(16)
                .hooks(audit),
        )
        .service(model()?);

    let request = ChatRequest::user(question);
    let run = request.context.run_id().clone();
    let finish = match agent.oneshot(request).await {
        Ok(response) => terminal::show(response.body).await,
        Err(error) => Err(error),
    };
    // The answer is there, and has waited for nobody; the process waits, lest the write is lost.
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
        format!("the audit can't be read: {error}"),
    )
}
