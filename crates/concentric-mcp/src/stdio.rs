//! Servers that are child processes.

use crate::text;
use crate::throttle::Throttle;
use concentric_core::{BoxError, Error, ErrorKind};
use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    pin::Pin,
    process::Stdio,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader, ReadBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The command of a child process, with its whole environment.
#[derive(Clone)]
pub(crate) struct StdioCommand {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
}

impl StdioCommand {
    /// Takes the program, the arguments, the directory and the explicit variables of a command.
    pub(crate) fn new(command: &std::process::Command) -> Self {
        let variables = command.get_envs();
        Self {
            program: command.get_program().to_owned(),
            arguments: command.get_args().map(ToOwned::to_owned).collect(),
            environment: variables
                .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
                .collect(),
            directory: command.get_current_dir().map(ToOwned::to_owned),
        }
    }

    /// Adds variables of this process, unless the command sets them.
    pub(crate) fn inherit(&mut self, names: impl IntoIterator<Item = OsString>) {
        for name in names {
            let is_set = self.environment.iter().any(|(set, _)| *set == name);
            if let Some(value) = std::env::var_os(&name).filter(|_| !is_set) {
                self.environment.push((name, value));
            }
        }
    }

    /// Starts the process.
    pub(crate) fn spawn(&self, server: &str, max_line: usize) -> Result<Process, Error> {
        let failed = |error: BoxError| {
            let what = format!("the MCP server `{server}` cannot be started");
            Error::new(ErrorKind::Configuration, what).with_source(error)
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        // A group of its own, so that its own children end with it.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| failed(error.into()))?;
        let no_pipe = || failed("the process has no pipes".into());
        let input = child.stdin.take().ok_or_else(no_pipe)?;
        let output = child.stdout.take().ok_or_else(no_pipe)?;
        let ended = CancellationToken::new();
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(log(server.to_owned(), errors, ended.clone()));
        }
        Ok(Process {
            output: LineLimit::new(output, max_line),
            input,
            child: ChildGuard {
                child: Some(child),
                _ended: ended.drop_guard(),
            },
        })
    }
}

/// A process that was started.
pub(crate) struct Process {
    pub(crate) output: LineLimit<ChildStdout>,
    pub(crate) input: ChildStdin,
    pub(crate) child: ChildGuard,
}

/// Kills the process and its group on drop, unless they have ended.
pub(crate) struct ChildGuard {
    child: Option<Child>,
    /// Ends the log.
    _ended: DropGuard,
}

/// The time from the request to end until the process is killed.
const GRACE: Duration = Duration::from_secs(3);

impl ChildGuard {
    /// Ends the process and waits until it has ended: by SIGTERM, and by SIGKILL after a while. The
    /// rest of its group is killed once the process itself has ended.
    pub(crate) async fn end(mut self) {
        let Some(child) = &mut self.child else {
            return;
        };
        #[cfg(unix)]
        {
            signal(child, rustix::process::Signal::TERM);
            let _ = tokio::time::timeout(GRACE, exited(child)).await;
            // Before the process is reaped, since its id may be another's afterwards.
            signal(child, rustix::process::Signal::KILL);
        }
        #[cfg(not(unix))]
        let _ = tokio::time::timeout(GRACE, child.wait()).await;
        let _ = child.kill().await;
        self.child = None;
    }
}

/// Waits until a process has ended, without reaping it.
#[cfg(unix)]
async fn exited(child: &Child) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    const INTERVAL: Duration = Duration::from_millis(10);
    let Some(id) = group(child) else {
        return;
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = waitid(WaitId::Pid(id), options) {
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // tokio kills and reaps the process itself, and knows nothing of its group.
        #[cfg(unix)]
        if let Some(child) = &self.child {
            signal(child, rustix::process::Signal::KILL);
        }
    }
}

/// The group of a process that was not reaped yet, so that its id is still its own.
#[cfg(unix)]
fn group(child: &Child) -> Option<rustix::process::Pid> {
    let id = i32::try_from(child.id()?).ok()?;
    rustix::process::Pid::from_raw(id)
}

#[cfg(unix)]
fn signal(child: &Child, signal: rustix::process::Signal) {
    if let Some(group) = group(child) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// The bytes of a line of a server's standard error that are logged.
const MAX_LOGGED: usize = 2048;

/// The time that is left to read the last lines of a server.
const LOG_GRACE: Duration = Duration::from_millis(500);

/// Logs the standard error of a server until its process has `ended`, also if another one keeps the
/// pipe open.
async fn log(server: String, errors: ChildStderr, ended: CancellationToken) {
    let late = async {
        ended.cancelled().await;
        tokio::time::sleep(LOG_GRACE).await;
    };
    tokio::select! {
        () = log_lines(server, errors) => {}
        () = late => {}
    }
}

async fn log_lines(server: String, errors: ChildStderr) {
    let mut errors = BufReader::new(errors);
    let mut throttle = Throttle::new();
    let mut line = Vec::new();
    while let Ok(read) = errors.fill_buf().await
        && !read.is_empty()
    {
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
        let room = MAX_LOGGED.saturating_sub(line.len()).min(part.len());
        line.extend_from_slice(part.get(..room).unwrap_or_default());
        let consumed = part.len() + usize::from(end.is_some());
        errors.consume(consumed);
        if end.is_some() {
            if throttle.allows() {
                let line = text::visible(&String::from_utf8_lossy(&line));
                tracing::debug!(target: "concentric::mcp", parent: None, server, line, "standard error of a server");
            }
            line.clear();
        }
    }
}

/// Fails once a line exceeds the limit, so that a server cannot fill the memory.
pub(crate) struct LineLimit<R> {
    inner: R,
    max: usize,
    length: usize,
}

impl<R> LineLimit<R> {
    const fn new(inner: R, max: usize) -> Self {
        let length = 0;
        Self { inner, max, length }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LineLimit<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        self.length = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => read.len() - end - 1,
            None => self.length + read.len(),
        };
        if self.length > self.max {
            let why = format!("a message of the server has more than {} bytes", self.max);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        Poll::Ready(Ok(()))
    }
}
