//! The processes: a Restate server, and workers behind one address.

use crate::world::World;
use bytes::Bytes;
use concentric_restate::{RestateClient, Waits};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    net::TcpListener as StdListener,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::sleep,
};

/// A port that was free.
pub fn port() -> u16 {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

async fn status(uri: &str) -> Option<u16> {
    let http = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let response = http.get(uri.parse().unwrap()).await.ok()?;
    Some(response.status().as_u16())
}

/// A Restate server.
#[derive(Debug)]
pub struct Restate {
    program: PathBuf,
    dir: PathBuf,
    ports: [u16; 3],
    signs_with: Option<PathBuf>,
    child: Option<Child>,
}

impl Restate {
    /// Starts a server; with the private key `signs_with`, it signs its requests to services.
    pub async fn start(dir: &Path, signs_with: Option<PathBuf>) -> Self {
        let program = std::env::var_os("CONCENTRIC_RESTATE_SERVER")
            .expect("`.ci/restate` installs the server, and sets CONCENTRIC_RESTATE_SERVER");
        let mut it = Self {
            program: program.into(),
            dir: dir.to_owned(),
            ports: [port(), port(), port()],
            signs_with,
            child: None,
        };
        it.restart().await;
        it
    }

    pub fn ingress(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub fn admin(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[1])
    }

    pub fn client(&self) -> RestateClient {
        RestateClient::new(self.ingress(), "Clerk").timeout(Duration::from_secs(120))
    }

    /// Starts the process again, with its data.
    pub async fn restart(&mut self) {
        self.kill().await;
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.dir.join("restate.log"))
            .unwrap();
        let [ingress, admin, node] = self.ports.map(|port| port.to_string());
        let child = Command::new(&self.program)
            .arg("--no-logo")
            .arg("--base-dir")
            .arg(self.dir.join("restate"))
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("RESTATE_NODE_NAME", "n1")
            .env("RESTATE_LISTEN_MODE", "tcp")
            .env("RESTATE_BIND_IP", "127.0.0.1")
            .env("RESTATE_ADVERTISED_HOST", "127.0.0.1")
            .env("RESTATE_BIND_PORT", node)
            .env("RESTATE_INGRESS__BIND_PORT", ingress)
            .env("RESTATE_ADMIN__BIND_PORT", admin)
            .env("RESTATE_DEFAULT_NUM_PARTITIONS", "1")
            .env("RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE", "128MB")
            .envs(self.signs_with.as_ref().map(|key| {
                let name = "RESTATE_WORKER__INVOKER__REQUEST_IDENTITY_PRIVATE_KEY_PEM_FILE";
                (name, key)
            }))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.child = Some(child);
        for _ in 0..600 {
            let admin = status(&format!("{}/health", self.admin())).await;
            let ingress = status(&format!("{}/restate/health", self.ingress())).await;
            if (admin, ingress) == (Some(200), Some(200)) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "the Restate server did not start: see {}",
            self.dir.display()
        );
    }

    /// The public key of its signatures, from its log.
    pub fn public_key(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("restate.log")).unwrap();
        let at = log.find("publickeyv1_").unwrap();
        let key = log[at..].split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        key.map(str::to_owned).next().unwrap()
    }

    /// Kills an invocation, as an operator does.
    pub async fn kill_invocation(&self, id: &str) {
        let http = Client::builder(TokioExecutor::new()).build_http();
        let uri = format!("{}/invocations/{id}/kill", self.admin());
        let request = http::Request::patch(uri).body(Full::new(Bytes::new()));
        let response = http.request(request.unwrap()).await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
    }

    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.start_kill().unwrap();
            child.wait().await.unwrap();
        }
    }

    /// The rows of an SQL query about invocations and their journals.
    pub async fn query(&self, sql: &str) -> Vec<serde_json::Value> {
        let http = Client::builder(TokioExecutor::new()).build_http();
        let body = serde_json::json!({ "query": sql }).to_string();
        let request = http::Request::post(format!("{}/query", self.admin()))
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = http.request(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let rows: serde_json::Value = serde_json::from_slice(&body)
            .unwrap_or_else(|_| panic!("{sql}: {}", String::from_utf8_lossy(&body)));
        rows["rows"].as_array().unwrap().clone()
    }
}

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Options {
    pub version: String,
    pub inactivity: Duration,
    pub abort: Duration,
    pub deadline: Duration,
    pub waits: Waits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: String::new(),
            inactivity: Duration::from_secs(60),
            abort: Duration::from_secs(240),
            deadline: Duration::from_secs(120),
            waits: Waits::Return,
        }
    }
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pub port: u16,
}

impl Worker {
    pub async fn start(world: &World, port: u16, options: &Options) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program.with_file_name("restate_worker"))
            .arg(world.file(""))
            .arg(port.to_string())
            .arg(&options.version)
            .args(
                [options.inactivity, options.abort, options.deadline]
                    .map(|time| time.as_millis().to_string()),
            )
            .arg(match options.waits {
                Waits::Return => "return",
                Waits::Await => "await",
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).await.unwrap();
        assert_eq!(line, "ready\n", "the worker did not start");
        Self { child, port }
    }

    pub fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub async fn wait(&mut self) {
        self.child.wait().await.unwrap();
    }

    pub async fn kill(&mut self) {
        let _ = self.child.start_kill();
        self.wait().await;
    }
}

/// Sends a signal to a process.
pub fn signal(id: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

/// A worker that is started again when it ends.
#[derive(Debug)]
pub struct Supervised {
    pub port: u16,
    id: Arc<AtomicU32>,
    is_held: Arc<AtomicBool>,
    options: Arc<Mutex<Options>>,
    task: tokio::task::JoinHandle<()>,
}

impl Supervised {
    pub async fn start(world: &World, options: Options) -> Self {
        let port = port();
        let first = Worker::start(world, port, &options).await;
        let id = Arc::new(AtomicU32::new(first.id()));
        let is_held = Arc::new(AtomicBool::new(false));
        let options = Arc::new(Mutex::new(options));
        let world = world.clone();
        let (of, held, now) = (Arc::clone(&id), Arc::clone(&is_held), Arc::clone(&options));
        let task = tokio::spawn(async move {
            let mut worker = first;
            loop {
                worker.wait().await;
                of.store(0, Ordering::Release);
                while held.load(Ordering::Acquire) {
                    sleep(Duration::from_millis(5)).await;
                }
                let options = now.lock().unwrap().clone();
                worker = Worker::start(&world, port, &options).await;
                of.store(worker.id(), Ordering::Release);
            }
        });
        Self {
            port,
            id,
            is_held,
            options,
            task,
        }
    }

    /// The id of the process; 0 while there is none.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    /// Kills the process, if there is one.
    pub fn kill(&self) {
        match self.id() {
            0 => {}
            id => signal(id, Signal::KILL),
        }
    }

    /// Whether the process is not started again.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Release);
    }

    /// The process is started with another version from now on.
    pub fn set_version(&self, version: &str) {
        self.options.lock().unwrap().version = version.to_owned();
    }

    /// Waits until there is no process.
    pub async fn ended(&self) {
        while self.id() != 0 {
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One address in front of several workers: each connection goes to the next one that accepts it.
#[derive(Debug)]
pub struct Splitter {
    pub port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Splitter {
    pub async fn start(workers: Vec<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let next = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (workers, next) = (workers.clone(), Arc::clone(&next));
                tokio::spawn(async move {
                    for _ in 0..workers.len() {
                        let at = next.fetch_add(1, Ordering::Relaxed) % workers.len();
                        let worker = TcpStream::connect(("127.0.0.1", workers[at])).await;
                        if let Ok(mut worker) = worker {
                            let _ = copy_bidirectional(&mut client, &mut worker).await;
                            return;
                        }
                    }
                });
            }
        });
        Self { port, task }
    }
}

impl Drop for Splitter {
    fn drop(&mut self) {
        self.task.abort();
    }
}
