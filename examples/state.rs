//! A conversation with a token limit that holds over several processes.
//!
//! ```console
//! $ cargo run --example state -- "which files are here?"
//! ```
//!
//! The number of used tokens is stored in `state.json`, or in the file `CONCENTRIC_STATE`. Once it
//! exceeds [`LIMIT`], no further step is made. The model is selected as in the quickstart.

use concentric::{
    AgentLayer, BoxError, ChatRequest, Context, Error, ErrorKind, Outcome, StepGate,
    hooks::Interest,
    id::ThreadId,
    state::{Durable, Scope, Slot, SlotError, Slots, Transient},
    step_gate::{FinishDecision, StepDecision, StepDraft, StepView},
};
use quickstart::{files, model::model, terminal};
use std::{io, process::ExitCode};
use tower::{ServiceBuilder, ServiceExt};

/// The token limit of the conversation.
const LIMIT: u64 = 500;

/// The number of tokens that the conversation has used.
struct Used;

impl Slot for Used {
    type Value = u64;
    type Keep = Durable;
    const NAME: &'static str = "example/used";
    const SCOPE: Scope = Scope::Thread;
}

/// The number of tokens that this run has used.
struct UsedHere;

impl Slot for UsedHere {
    type Value = u64;
    type Keep = Transient;
    const NAME: &'static str = "example/used_here";
    const SCOPE: Scope = Scope::Run;
}

/// Halts a run whose conversation has exceeded its limit.
struct Budget;

impl StepGate for Budget {
    fn name(&self) -> &str {
        "budget"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP | Interest::BEFORE_FINISH
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        Ok(match count(draft)? {
            used if used > LIMIT => StepDecision::halt(format!("{used} tokens used")),
            _ => StepDecision::Continue,
        })
    }

    async fn before_finish(&self, draft: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        count(draft)?;
        Ok(FinishDecision::Finish)
    }
}

/// Adds the tokens that the run has used since the last count.
fn count(step: &StepView) -> Result<u64, SlotError> {
    let tokens = [step.usage.input_tokens(), step.usage.output_tokens()];
    let now: u64 = tokens.into_iter().flatten().sum();
    let before = *step.context.state::<UsedHere>()?;
    step.context.update_state::<UsedHere>(|_| now)?;
    let more = now.saturating_sub(before);
    let used = step.context.update_state::<Used>(|used| used + more)?;
    Ok(*used)
}

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if question.trim().is_empty() {
        terminal::status("Usage: cargo run --example state -- QUESTION");
        return ExitCode::from(2);
    }
    match ask(question).await {
        Ok(Outcome::Halted { reason }) => {
            terminal::status(format_args!("The token limit is exceeded: {reason}."));
            ExitCode::from(3)
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn ask(question: String) -> Result<Outcome, Error> {
    let file = std::env::var("CONCENTRIC_STATE").unwrap_or_else(|_| "state.json".to_owned());
    let thread = match std::fs::read(&file) {
        Ok(json) => Slots::restore(serde_json::from_slice::<Vec<_>>(&json).map_err(unreadable)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Slots::new(),
        Err(error) => return Err(unreadable(error)),
    };
    let mut context = Context::builder().thread_id(ThreadId::new("state")).build();
    context.set_thread_slots(thread.clone());

    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(files::tools(".")?).gate(Budget))
        .service(model()?);
    let request = ChatRequest::user(question).with_context(context);
    let shown = match agent.oneshot(request).await {
        Ok(response) => terminal::show(response.body).await,
        Err(error) => Err(error),
    };
    // The tokens count for every outcome of the run.
    let json = serde_json::to_vec_pretty(&thread.snapshot()?).map_err(unreadable)?;
    std::fs::write(&file, json).map_err(unreadable)?;
    Ok(shown?.outcome)
}

fn unreadable(error: impl Into<BoxError>) -> Error {
    let error: BoxError = error.into();
    Error::new(
        ErrorKind::Other,
        format!("failed to read or write the state: {error}"),
    )
}
