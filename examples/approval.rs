//! An agent that requires approval before it writes a file, and accepts it in another process.
//!
//! ```console
//! $ cargo run --example approval -- "write hello to note.txt"
//! $ cargo run --example approval -- --approve
//! ```
//!
//! The first command ends with exit code 3 and prints the interrupt. The run is stored in a SQLite
//! file (`CONCENTRIC_DB`, or `target/.approval.db`), or in the server whose URL is in `CONCENTRIC_DB`
//! (`postgres://..`, `redis://..`). The second command resumes it, at any later
//! time, on any machine that has the file or reaches the server. `--deny REASON` and `--edit ARGUMENTS` are other
//! replies. Each takes the interrupt's id if several are open. Without arguments, the example lists
//! the open interrupts.
//!
//! A process may be killed at any time. Once its lease has expired ([`LEASE`]), `--continue`
//! resumes its run: an accepted reply is kept, and a file that was written is not written again.
//!
//! The model is selected as in the quickstart.

use concentric::{
    Context, Environment, ErrorKind, Interrupt, Outcome, Reply,
    id::{InterruptId, ThreadId},
    interrupt::ReplyKind,
    prelude::*,
    store::{Tenant, waiting},
};
use concentric_examples::store::{self, Runs, Server};
use quickstart::{files, model::model, terminal};
use std::{process::ExitCode, sync::Arc, time::Duration};
use tower::{ServiceBuilder, ServiceExt};

/// The time without renewal after which a process is considered dead.
const LEASE: Duration = Duration::from_secs(5);
const COMMAND: &str = "cargo run --example approval --";
/// The exit code of a run that is interrupted.
const INTERRUPTED: u8 = 3;

fn agent(store: &impl Runs) -> Result<BoxModel, Error> {
    let tools = files::tools(".")?
        .tool(files::write_file(".")?)
        .gate(Approval::for_tools("write_file").replies([
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
        ]))
        .ledger(store.clone()); // records each write before it starts, and its outcome

    let agent = ServiceBuilder::new()
        .layer(RequestDefaultsLayer::new().system("Work on the files in the current folder."))
        .layer(SuspendLayer::new(Arc::new(store.clone())).lease(LEASE)) // persists interrupted runs
        .layer(AgentLayer::new(tools).step_limit(16))
        .service(model()?);
    Ok(BoxModel::new(agent))
}

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match act(&args).await {
        Ok(code) => code,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn act(args: &[&str]) -> Result<ExitCode, Error> {
    match store::server().await? {
        Some(Server::Postgres(store)) => act_in(&store, args).await,
        Some(Server::Redis(store)) => act_in(&store, args).await,
        None => act_in(&store::open("approval")?, args).await,
    }
}

async fn act_in(store: &impl Runs, args: &[&str]) -> Result<ExitCode, Error> {
    let request = match args {
        [] => return list_interrupts(store).await,
        ["--continue"] => return continue_runs(store).await,
        ["--approve", id @ ..] => reply(Reply::approve(select(store, id).await?)),
        ["--deny", reason, id @ ..] => reply(Reply::deny(select(store, id).await?, *reason)),
        ["--edit", arguments, id @ ..] => {
            let arguments: serde_json::Value = serde_json::from_str(arguments).map_err(|e| {
                Error::new(ErrorKind::InvalidRequest, "the arguments are not JSON").with_source(e)
            })?;
            reply(Reply::approve_edited(select(store, id).await?, arguments))
        }
        [flag, ..] if flag.starts_with('-') => {
            terminal::status(format_args!(
                "Usage: {COMMAND} \"write hello to note.txt\"\n       {COMMAND} \
                 [--approve [ID] | --deny REASON [ID] | --edit ARGUMENTS [ID] | --continue]"
            ));
            return Ok(ExitCode::from(2));
        }
        words => ChatRequest::user(words.join(" ")).with_context(context()),
    };
    run(store, request).await
}

/// The thread of all runs of this example.
fn thread() -> ThreadId {
    ThreadId::new("approval")
}

fn context() -> Context {
    Context::builder().thread_id(thread()).build()
}

/// Creates a request that resumes the run with this interrupt, which the store finds.
fn reply(reply: Reply) -> ChatRequest {
    ChatRequest::replying(vec![reply]).with_context(context())
}

/// Drives a run until it finishes or is interrupted.
async fn run(store: &impl Runs, request: ChatRequest) -> Result<ExitCode, Error> {
    let response = agent(store)?.oneshot(request).await?;
    let finish = terminal::show(response.body).await?;
    terminal::summary(&finish);
    for interrupt in finish.interrupts() {
        terminal::interrupt(interrupt, COMMAND);
    }
    Ok(match finish.outcome {
        Outcome::Interrupted => ExitCode::from(INTERRUPTED),
        Outcome::Completed => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns the open interrupts.
async fn interrupts(store: &impl Runs) -> Result<Vec<Interrupt>, Error> {
    Ok(waiting(store, Tenant::default(), thread()).await?)
}

async fn list_interrupts(store: &impl Runs) -> Result<ExitCode, Error> {
    let interrupts = interrupts(store).await?;
    for interrupt in &interrupts {
        terminal::interrupt(interrupt, COMMAND);
    }
    if interrupts.is_empty() {
        terminal::status("No open interrupts.");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(INTERRUPTED))
}

/// Returns the given id, or that of the only open interrupt.
async fn select(store: &impl Runs, id: &[&str]) -> Result<InterruptId, Error> {
    if let [id] = id {
        return Ok(InterruptId::new(*id));
    }
    let message = match interrupts(store).await?.as_slice() {
        [only] if id.is_empty() => return Ok(only.id.clone()),
        [] => "no open interrupts",
        _ => "several interrupts are open: pass an id",
    };
    Err(Error::new(ErrorKind::InvalidRequest, message))
}

/// Resumes the runs of processes that were killed.
async fn continue_runs(store: &impl Runs) -> Result<ExitCode, Error> {
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let environment = Environment::system();
    let mut code = None;
    // One after the other, since the lease of a claimed run is not renewed before it is driven.
    while let Some(request) = layer.claim_abandoned(&environment, 1).await?.pop() {
        code = Some(run(store, request).await?);
    }
    if code.is_none() {
        terminal::status("No abandoned runs.");
    }
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}
