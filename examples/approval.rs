//! An agent that asks before it writes a file, and takes the answer in another process.
//!
//! ```console
//! $ cargo run --example approval -- "write hello to note.txt"
//! $ cargo run --example approval -- --approve
//! ```
//!
//! The first ends when the agent asks, with exit code 3, and shows the question. The run waits in a
//! SQLite file (`CONCENTRIC_DB`, or `target/.approval.db`), and the second goes on with it: the same
//! night or next week, on this machine or on another that has the file. `--deny REASON` and
//! `--edit ARGUMENTS` answer otherwise; each takes the question's id, where several wait. With no
//! arguments it shows what waits.
//!
//! A process may be killed at any time. As soon as it is known to be dead ([`LEASE`]), `--continue`
//! goes on where it was: an answer that was taken counts, and what was written is not written again.
//!
//! For the model see the quickstart.

use concentric::{
    ChatRequest, Context, Environment, InterruptId, ReplyKind, ThreadId,
    layers::suspend,
    prelude::*,
    store::{Tenant, waiting},
};
use concentric_examples::{files, model::model, store, terminal};
use std::{process::ExitCode, sync::Arc, time::Duration};
use tower::{ServiceBuilder, ServiceExt};

/// How long after its last sign of life a process is thought dead.
const LEASE: Duration = Duration::from_secs(5);
const COMMAND: &str = "cargo run --example approval --";
/// The exit code of a run that waits for an answer.
const WAITS: u8 = 3;

fn agent(store: &SqliteStore) -> Result<BoxModel, Error> {
    let tools = files::tools(".")?
        .tool(files::write_file(".")?)
        .gate(Approval::for_tools("write_file").replies([
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
        ]))
        .ledger(store.clone()); // what was about to be written, and what came of it

    let agent = ServiceBuilder::new()
        .layer(DefaultsLayer::new().system("You work on the files of the current folder."))
        .layer(SuspendLayer::new(Arc::new(store.clone())).lease(LEASE)) // runs that wait, or died
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
            terminal::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn act(args: &[&str]) -> Result<ExitCode, Error> {
    let store = store::open("approval")?;
    let request = match args {
        [] => return show_questions(&store).await,
        ["--continue"] => return go_on(&store).await,
        ["--approve", id @ ..] => reply(Reply::approve(question(&store, id).await?)),
        ["--deny", reason, id @ ..] => reply(Reply::deny(question(&store, id).await?, *reason)),
        ["--edit", arguments, id @ ..] => {
            let arguments: serde_json::Value = serde_json::from_str(arguments).map_err(|e| {
                Error::new(ErrorKind::InvalidRequest, "that is no JSON").with_source(e)
            })?;
            reply(Reply::approve_edited(
                question(&store, id).await?,
                arguments,
            ))
        }
        [flag, ..] if flag.starts_with('-') => {
            terminal::say(format_args!(
                "Usage: {COMMAND} \"write hello to note.txt\"\n       {COMMAND} \
                 [--approve [ID] | --deny REASON [ID] | --edit ARGUMENTS [ID] | --continue]"
            ));
            return Ok(ExitCode::from(2));
        }
        words => ChatRequest::user(words.join(" ")).with_context(context()),
    };
    run(&store, request).await
}

/// All that is asked here is one conversation.
fn thread() -> ThreadId {
    ThreadId::new("approval")
}

fn context() -> Context {
    Context::builder().thread_id(thread()).build()
}

/// The request that goes on with the run that asked; the store knows which.
fn reply(reply: Reply) -> ChatRequest {
    ChatRequest::replying(vec![reply]).with_context(context())
}

/// Runs until the agent has answered, or asks.
async fn run(store: &SqliteStore, request: ChatRequest) -> Result<ExitCode, Error> {
    let response = agent(store)?.oneshot(request).await?;
    let finish = terminal::show(response.body).await?;
    terminal::summary(&finish);
    for ask in finish.interrupts() {
        terminal::question(ask, COMMAND);
    }
    Ok(match finish.outcome {
        Outcome::Interrupted => ExitCode::from(WAITS),
        Outcome::Completed => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What waits for an answer.
async fn questions(store: &SqliteStore) -> Result<Vec<Interrupt>, Error> {
    Ok(waiting(store, Tenant::default(), thread()).await?)
}

async fn show_questions(store: &SqliteStore) -> Result<ExitCode, Error> {
    let questions = questions(store).await?;
    for ask in &questions {
        terminal::question(ask, COMMAND);
    }
    if questions.is_empty() {
        terminal::say("Nothing waits for an answer.");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(WAITS))
}

/// The question of that id, or else the only one that waits.
async fn question(store: &SqliteStore, id: &[&str]) -> Result<InterruptId, Error> {
    if let [id] = id {
        return Ok(InterruptId::new(*id));
    }
    let said = match questions(store).await?.as_slice() {
        [only] if id.is_empty() => return Ok(only.id.clone()),
        [] => "nothing waits for an answer",
        _ => "several questions wait: name one by its id",
    };
    Err(Error::new(ErrorKind::InvalidRequest, said))
}

/// Goes on with what was killed.
async fn go_on(store: &SqliteStore) -> Result<ExitCode, Error> {
    let left = suspend::abandoned(store, &Environment::system(), 16).await?;
    if left.is_empty() {
        terminal::say("Nothing is to be continued.");
    }
    let mut code = ExitCode::SUCCESS;
    for request in left {
        code = run(store, request).await?;
    }
    Ok(code)
}
