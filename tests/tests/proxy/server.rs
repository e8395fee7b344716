//! A service that does to each connection what a script says, and sees who closes it.

use bytes::Bytes;
use concentric_core::{
    ChatRequest, Context, Environment,
    context::{Clock, Sleep},
};
use concentric_test::{SeededRandom, SequentialIds};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::WriteHalf},
    sync::SetOnce,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

/// How long is waited for what must happen, before the test has failed. A starved machine takes minutes
/// for what sends without an end.
pub const LIMIT: Duration = Duration::from_mins(10);

/// What is done to a connection, in order. After the last, it is closed.
#[derive(Clone, Debug)]
pub enum Act {
    Send(Bytes),
    /// A byte at a time, each after so long.
    Drip(Bytes, Duration),
    Pause(Duration),
    /// The same for ever.
    Flood(Bytes),
    /// Nothing, for ever.
    Stall,
    /// The connection is broken off (RST).
    Reset,
}

/// What becomes of one request.
#[derive(Debug)]
pub struct Script {
    acts: Vec<Act>,
    /// Connections that the client has not closed, nor the script.
    open: TaskTracker,
    asked: Mutex<Vec<String>>,
    /// When it first kept the client waiting.
    waits: SetOnce<Instant>,
}

/// A clock that stands still until the script keeps the client waiting, so that on a slow machine the
/// client does not give up a request that the service has yet to read.
struct ScriptClock(Arc<Script>);

impl Clock for ScriptClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let script = Arc::clone(&self.0);
        Box::pin(async move {
            script.waits.wait().await;
            sleep(duration).await;
        })
    }

    fn monotonic(&self) -> Duration {
        self.0.waits.get().map(Instant::elapsed).unwrap_or_default()
    }
}

impl Script {
    /// A request whose time limits count by the script: see [`ScriptClock`].
    pub fn request(self: &Arc<Self>) -> ChatRequest {
        let clock = ScriptClock(Arc::clone(self));
        let environment = Environment::new(clock, SequentialIds::default(), SeededRandom::new(0));
        ChatRequest::user("hi").with_context(Context::builder().environment(environment).build())
    }

    /// What was asked, with its headers.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until its connection is closed. A script that stalls or floods is at its end only when
    /// the client closes the connection.
    pub async fn closed(&self) {
        self.open.close();
        let closed = timeout(LIMIT, self.open.wait()).await;
        closed.expect("the client keeps the connection");
    }
}

/// The service.
#[derive(Clone, Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    scripts: Mutex<HashMap<u64, Arc<Script>>>,
    connections: TaskTracker,
    accepted: Mutex<u64>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        // It ends with the test's runtime.
        tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                *accepting.accepted.lock().unwrap() += 1;
                let serve = serve(connection, Arc::clone(&accepting));
                accepting.connections.spawn(serve);
            }
        });
        Self { address, shared }
    }

    /// Says what becomes of the request of that number.
    pub fn script(&self, number: u64, acts: Vec<Act>) -> Arc<Script> {
        let script = Arc::new(Script {
            acts,
            open: TaskTracker::new(),
            asked: Mutex::default(),
            waits: SetOnce::new(),
        });
        let mut scripts = self.shared.scripts.lock().unwrap();
        scripts.insert(number, Arc::clone(&script));
        script
    }

    /// The base URL of the request of that number.
    pub fn url(&self, number: u64) -> String {
        format!("http://{}/{number}", self.address)
    }

    /// How many connections there were.
    pub fn accepted(&self) -> u64 {
        *self.shared.accepted.lock().unwrap()
    }

    /// Waits until all connections are closed.
    pub async fn closed(&self) {
        self.shared.connections.close();
        let closed = timeout(LIMIT, self.shared.connections.wait()).await;
        closed.expect("the client keeps a connection");
    }
}

/// Reads a request, and returns its head; `None`, if the client is gone.
async fn asked(connection: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        if !matches!(connection.read_buf(&mut read).await, Ok(1..)) {
            return None;
        }
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = head else { continue };
        let head = String::from_utf8_lossy(&read[..end]);
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.parse::<usize>().unwrap())
        });
        if read.len() == end + 4 + length.unwrap() {
            return Some(head.into_owned());
        }
    }
}

async fn serve(mut connection: TcpStream, shared: Arc<Shared>) {
    // Each piece is to be one of its own.
    connection.set_nodelay(true).unwrap();
    let Some(head) = asked(&mut connection).await else {
        return;
    };
    let mut path = head.split(['/', ' ']).skip_while(|word| !word.is_empty());
    let number = path.nth(1).unwrap().parse().unwrap();
    let script = Arc::clone(&shared.scripts.lock().unwrap()[&number]);
    let _open = script.open.token();
    script.asked.lock().unwrap().push(head);
    let (mut reader, mut writer) = connection.split();
    let mut more = [0];
    let is_over = tokio::select! {
        read = reader.read(&mut more) => {
            assert!(matches!(read, Ok(0) | Err(_)), "two requests at once");
            false
        }
        played = play(&mut writer, &script) => played.is_ok(),
    };
    if is_over && matches!(script.acts.last(), Some(Act::Reset)) {
        connection.set_zero_linger().unwrap();
    }
}

async fn play(writer: &mut WriteHalf<'_>, script: &Script) -> io::Result<()> {
    for act in &script.acts {
        if !matches!(act, Act::Send(_) | Act::Reset) {
            // All but the first time it is set already.
            let _ = script.waits.set(Instant::now());
        }
        match act {
            Act::Send(bytes) => writer.write_all(bytes).await?,
            Act::Drip(bytes, pause) => {
                for byte in bytes {
                    sleep(*pause).await;
                    writer.write_all(&[*byte]).await?;
                }
            }
            Act::Flood(bytes) => loop {
                writer.write_all(bytes).await?;
            },
            Act::Pause(pause) => sleep(*pause).await,
            Act::Stall => std::future::pending().await,
            Act::Reset => {}
        }
    }
    Ok(())
}
