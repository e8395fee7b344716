//! An agent that answers questions about the files of the current folder.
//!
//! ```console
//! $ cargo run -p quickstart -- "which files are here?"
//! ```
//!
//! The example uses the first provider with a key in the environment: `OPENAI_API_KEY`,
//! `ANTHROPIC_API_KEY`, `GEMINI_API_KEY`, `OLLAMA_HOST`, or that of any service in `Profile::ALL`,
//! such as `GROQ_API_KEY`. `CONCENTRIC_PROVIDER=anthropic` selects one of several,
//! `ANTHROPIC_MODEL` its model, and `OPENAI_BASE_URL` any other server with OpenAI's protocol.
//! Without a key, or with `CONCENTRIC_PROVIDER=offline`, it uses a small stand-in without network
//! access. `RUST_LOG=tower_http=debug` logs the HTTP requests. Ctrl-C cancels the run.

use concentric::{
    AgentLayer, CancelReason, ChatRequest, Context, Error, Outcome, layers::RequestDefaultsLayer,
};
use quickstart::{files, model::model, terminal};
use std::process::ExitCode;
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if question.trim().is_empty() {
        terminal::status("Usage: cargo run -p quickstart -- QUESTION");
        return ExitCode::from(2);
    }
    match ask(question).await {
        Ok(Outcome::Completed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(130),
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn ask(question: String) -> Result<Outcome, Error> {
    let agent = ServiceBuilder::new()
        // Once per run.
        .layer(RequestDefaultsLayer::new().system(
            "Answer questions about the files in the current folder. Inspect the files before you \
             answer. Be brief.",
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

/// Cancels the run on the first Ctrl-C, and exits on the second.
fn cancel_on_ctrl_c(context: Context) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            context.cancel(CancelReason::User);
            let _ = tokio::signal::ctrl_c().await;
            std::process::exit(130);
        }
    });
}
