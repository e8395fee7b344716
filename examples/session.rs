//! A conversation about the files of the current folder, which can be steered while it goes on.
//!
//! ```console
//! $ cargo run --example session
//! ```
//!
//! Each line is a turn. A line that begins with `!` is put into the turn that runs: the model reads
//! it before its next step. `/stop` cancels the turn that runs, `/reset` forgets what was said, and
//! the end of the input ends the conversation. The model is the one of the quickstart.

use concentric::{
    AgentLayer, Error, Message, Part, Role, ThreadId,
    layers::{
        DefaultsLayer, Steering,
        session::{Session, SessionTarget, Sessions},
    },
    prelude::BoxModel,
};
use concentric_examples::{files, model::model, terminal};
use std::process::ExitCode;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    task::JoinSet,
};
use tower::{ServiceBuilder, ServiceExt};

/// How many turns may wait while one runs, and how many messages for it.
const QUEUE: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    match chat().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn chat() -> Result<(), Error> {
    let steering = Steering::new(QUEUE);
    let agent = ServiceBuilder::new()
        .layer(DefaultsLayer::new().system("You answer questions about the files of a folder."))
        .layer(AgentLayer::new(files::tools(".")?).gate(steering.gate()))
        .service(model()?);
    let session = Sessions::new(BoxModel::new(agent))
        .queue(QUEUE)
        .on_end(|said| terminal::say(format_args!("({} turns)", said.len())))
        .oneshot(SessionTarget::new(ThreadId::new("chat")))
        .await?;

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut turns = JoinSet::new();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.trim() {
            "" => {}
            "/stop" if session.cancel() => {}
            "/stop" => terminal::say("Nothing runs."),
            "/reset" => {
                if let Err(error) = session.reset() {
                    terminal::complain(&error);
                }
            }
            line if line.starts_with('!') => {
                let part = Part::text(line.trim_start_matches('!').trim());
                let message = Message::new(Role::User, vec![part]);
                if let Err(error) = steering.at_next_step(message) {
                    terminal::say(error);
                }
            }
            line => {
                turns.spawn(turn(session.clone(), line.to_owned()));
            }
        }
    }
    // What was asked is still answered.
    turns.join_all().await;
    Ok(())
}

/// One turn, when it is its turn.
async fn turn(session: Session<BoxModel>, line: String) {
    let answered = async {
        let request = session.user(line);
        let response = session.oneshot(request).await?;
        terminal::show(response.body).await
    };
    match answered.await {
        Ok(finish) => terminal::summary(&finish),
        Err(error) => terminal::complain(&error),
    }
}
