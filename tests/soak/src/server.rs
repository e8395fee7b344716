//! The measured process: an agent behind AG-UI, with approvals, a ledger and a store.

use crate::{Fault, measure::Status};
use axum::{Json, Router, extract::State, routing::get};
use concentric::{
    AgentLayer, BoxModel, Context, Environment, Error,
    context::{Clock, Sleep},
    http::ag_ui::AgUiLayer,
    layers::{InFlightLimitLayer, SuspendLayer},
    providers::{ApiKey, HttpClient, OpenAiLayer},
    store::{Options, RunStore, SqliteStore},
    tools::{Approval, NoArguments, Tool, ToolError, Toolset, tool_with_context},
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    env,
    io::{Read, Write},
    path::Path,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    time::sleep,
};
use tower::{Layer, ServiceBuilder};

pub(crate) const ROLE: &str = "server";

/// The largest number of concurrent model calls.
const MODEL_CALLS: usize = 4096;

/// Serves until standard input is closed. The arguments are the provider's URL and the database.
pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let (Some(provider), Some(database)) = (args.next(), args.next()) else {
        eprintln!("usage: {ROLE} PROVIDER DATABASE");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let served = runtime
        .map_err(Fault::from)
        .and_then(|it| it.block_on(serve(&provider, Path::new(&database))));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the server failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(provider: &str, database: &Path) -> Result<(), Fault> {
    let store = SqliteStore::open(database)?;
    let agent = AgUiLayer::new().layer(agent(provider, &store)?);
    let app = Router::new()
        .route_service("/agent", agent)
        .route("/status", get(status))
        .route("/left", get(left))
        .with_state(Arc::from(database));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

async fn status() -> Result<Json<Status>, String> {
    let status = Status::of_this_process();
    status.map(Json).map_err(|error| error.to_string())
}

/// The wall clock, a day ahead.
struct Tomorrow;

impl Clock for Tomorrow {
    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(24 * 60 * 60)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Environment::system().clock().sleep(duration)
    }
}

/// Returns the threads of the runs that are still recorded as running: those that a store
/// considers abandoned a day from now.
async fn left(State(path): State<Arc<Path>>) -> Result<Json<Vec<String>>, String> {
    let tomorrow = SqliteStore::open_with(path, Options::new().clock(Tomorrow));
    let store = tomorrow.map_err(|error| error.to_string())?;
    let left = store.claim_abandoned(10_000, Duration::ZERO).await;
    let threads = left.map(|left| left.iter().map(|run| run.key.thread.to_string()).collect());
    threads.map(Json).map_err(|error| error.to_string())
}

fn agent(provider: &str, store: &SqliteStore) -> Result<BoxModel, Error> {
    let tools = Toolset::new()
        .tool(works("look", Duration::from_millis(200)).read_only())
        .tool(works("pay", Duration::from_millis(50)))
        .gate(Approval::for_tools(["pay"]))
        .ledger(store.clone());
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(AgentLayer::new(tools))
        .layer(InFlightLimitLayer::new(MODEL_CALLS))
        .layer(OpenAiLayer::compatible(
            provider,
            "model",
            Some(ApiKey::new("key")),
        ))
        .service(HttpClient::new()?);
    Ok(BoxModel::new(agent))
}

/// A tool that takes the given time.
fn works(name: &'static str, time: Duration) -> Tool {
    tool_with_context(
        name,
        "Works for a while.",
        move |NoArguments {}, context: Context| async move {
            context.sleep(time).await?;
            Ok::<_, ToolError>("done")
        },
    )
}

/// The server process, from its parent's view.
pub(crate) struct Server {
    process: Child,
    url: String,
    http: Client<hyper_util::client::legacy::connect::HttpConnector, Empty<bytes::Bytes>>,
}

pub(crate) async fn start(provider: &str, database: &Path) -> Result<Server, Fault> {
    let mut process = Command::new(env::current_exe()?)
        .arg(ROLE)
        .arg(provider)
        .arg(database)
        .env("MALLOC_PERTURB_", "165")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = process.stdout.take().ok_or("the server has no output")?;
    let mut url = String::new();
    BufReader::new(stdout).read_line(&mut url).await?;
    if url.is_empty() {
        return Err("the server did not start".into());
    }
    Ok(Server {
        process,
        url: url.trim().to_owned(),
        http: Client::builder(TokioExecutor::new()).build_http(),
    })
}

impl Server {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    async fn get(&self, path: &str) -> Result<bytes::Bytes, Fault> {
        let url = format!("{}{path}", self.url).parse()?;
        let response = self.http.get(url).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    pub(crate) async fn status(&self) -> Result<Status, Fault> {
        Ok(serde_json::from_slice(&self.get("/status").await?)?)
    }

    pub(crate) async fn runs_left(&self) -> Result<Vec<String>, Fault> {
        Ok(serde_json::from_slice(&self.get("/left").await?)?)
    }

    /// Waits until tasks and files are down to those of `before`, or, without it, have been
    /// constant for three seconds. Returns the last status in any case.
    pub(crate) async fn settled(
        &self,
        before: Option<&Status>,
        limit: Duration,
    ) -> Result<Status, Fault> {
        let since = Instant::now();
        let mut last = self.status().await?;
        let mut same = 0;
        while since.elapsed() < limit && same < 6 {
            sleep(Duration::from_millis(500)).await;
            let now = self.status().await?;
            let is_settled = match before {
                Some(before) => now.tasks <= before.tasks && now.files <= before.files,
                None => now.tasks == last.tasks && now.files == last.files,
            };
            same = if is_settled { same + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }

    pub(crate) async fn stop(&mut self) -> Result<(), Fault> {
        drop(self.process.stdin.take());
        let status = self.process.wait().await?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the server ended with {status}").into()),
        }
    }
}
