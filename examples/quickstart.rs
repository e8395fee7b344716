//! An agent that answers questions about the files of the current folder.
//!
//! ```console
//! $ cargo run --example quickstart -- "what is in this folder?"
//! ```
//!
//! It asks the first provider that the environment has a key for: `OPENAI_API_KEY`,
//! `ANTHROPIC_API_KEY`, `GEMINI_API_KEY`, `OLLAMA_HOST`, or that of any service in `Profile::ALL`, as
//! `GROQ_API_KEY`. `CONCENTRIC_PROVIDER=anthropic` says which if there are several, `ANTHROPIC_MODEL`
//! which model of it, and `OPENAI_BASE_URL` leads to any other server that speaks OpenAI's protocol.
//! Without a key, or with `CONCENTRIC_PROVIDER=offline`, a small stand-in answers that needs no
//! network. `RUST_LOG=tower_http=debug` shows the HTTP requests. Ctrl-C cancels the run.

use concentric::{
    AgentLayer, CancelReason, ChatRequest, Context, Error, Outcome, layers::DefaultsLayer,
};
use concentric_examples::{files, model::model, terminal};
use std::process::ExitCode;
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if question.trim().is_empty() {
        terminal::say("Usage: cargo run --example quickstart -- \"what is in this folder?\"");
        return ExitCode::from(2);
    }
    match ask(question).await {
        Ok(Outcome::Completed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(130),
        Err(error) => {
            terminal::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn ask(question: String) -> Result<Outcome, Error> {
    let agent = ServiceBuilder::new()
        // Once per run.
        .layer(DefaultsLayer::new().system(
            "You answer questions about the files of the current folder. Look before you answer, \
             and be brief.",
        ))
        // The loop between the model and the tools.
        .layer(AgentLayer::new(files::tools(".")?).step_limit(16))
        // Once per model call.
        .service(model()?);

    let request = ChatRequest::user(question);
    cancel_on_ctrl_c(request.context.clone());
    let response = agent.oneshot(request).await?;
    let finish = terminal::show(response.body).await?;
    terminal::summary(&finish);
    Ok(finish.outcome)
}

/// Stops the run the first time, and the program the second.
fn cancel_on_ctrl_c(context: Context) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            context.cancel(CancelReason::User);
            let _ = tokio::signal::ctrl_c().await;
            std::process::exit(130);
        }
    });
}
