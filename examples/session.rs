//! A conversation about the files of the current folder, which can be steered while a turn runs.
//!
//! ```console
//! $ cargo run --example session
//! ```
//!
//! Each line is a turn. A line that begins with `!` is added to the running turn: the model
//! receives it before its next step. `/stop` cancels the running turn, `/reset` clears the history,
//! and the end of the input ends the conversation. The model is selected as in the quickstart.

use concentric::{
    AgentLayer, BoxModel, Error, Message, Part, Role,
    id::ThreadId,
    layers::{
        RequestDefaultsLayer, Steering,
        session::{MakeSession, Session, SessionTarget},
    },
};
use quickstart::{files, model::model, terminal};
use std::process::ExitCode;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    task::JoinSet,
};
use tower::{ServiceBuilder, ServiceExt};

/// The largest number of turns that wait, and of messages for the running turn.
const QUEUE: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    match chat().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn chat() -> Result<(), Error> {
    let steering = Steering::new(QUEUE);
    let agent = ServiceBuilder::new()
        .layer(RequestDefaultsLayer::new().system("Answer questions about the files in a folder."))
        .layer(AgentLayer::new(files::tools(".")?).gate(steering.gate()))
        .service(model()?);
    let session = MakeSession::new(BoxModel::new(agent))
        .queue(QUEUE)
        .on_end(|turns| terminal::status(format_args!("({} turns)", turns.len())))
        .oneshot(SessionTarget::new(ThreadId::new("chat")))
        .await?;

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut turns = JoinSet::new();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.trim() {
            "" => {}
            "/stop" if session.cancel() => {}
            "/stop" => terminal::status("No turn is running."),
            "/reset" => {
                if let Err(error) = session.reset() {
                    terminal::error(&error);
                }
            }
            line if line.starts_with('!') => {
                let part = Part::text(line.trim_start_matches('!').trim());
                let message = Message::new(Role::User, vec![part]);
                if let Err(error) = steering.at_next_step(message) {
                    terminal::status(error);
                }
            }
            line => {
                turns.spawn(turn(session.clone(), line.to_owned()));
            }
        }
    }
    // Queued turns still run.
    turns.join_all().await;
    Ok(())
}

/// Runs one turn after those that are queued before it.
async fn turn(session: Session<BoxModel>, line: String) {
    let run = async {
        let request = session.user(line);
        let response = session.oneshot(request).await?;
        terminal::show(response.body).await
    };
    match run.await {
        Ok(finish) => terminal::summary(&finish),
        Err(error) => terminal::error(&error),
    }
}
