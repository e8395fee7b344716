use crate::Recording;
use bytes::Bytes;
use std::{io, net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// An HTTP server on a loopback socket that responds with recordings.
///
/// The server stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// Returns an error if no socket is available.
    pub async fn start(recordings: Arc<[Recording]>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let recordings = Arc::clone(&recordings);
                // A client may disconnect at any time.
                tokio::spawn(async move { serve(stream, &recordings).await.ok() });
            }
        });
        Ok(Self { address, task })
    }

    /// Returns the base URL below which every request is answered with the recording at `index`.
    pub fn base_url(&self, index: usize) -> String {
        format!("http://{}/{index}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, recordings: &[Recording]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let target = read_request(&mut stream).await?;
    let index = target
        .split('/')
        .nth(1)
        .and_then(|index| index.parse::<usize>().ok());
    let Some(recording) = index.and_then(|index| recordings.get(index)) else {
        return stream
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            .await;
    };
    let mut head = format!("HTTP/1.1 {} Recorded\r\n", recording.status).into_bytes();
    for (name, value) in &recording.headers {
        head.extend_from_slice(name.as_ref());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(&head).await?;
    for piece in recording.pieces() {
        stream.write_all(&chunk(&piece)).await?;
        stream.flush().await?;
        tokio::task::yield_now().await;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

fn chunk(piece: &Bytes) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Reads a request to the end of its body, and returns its target.
async fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    const MAX: usize = 1 << 20;
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let mut read = Vec::new();
    let end = loop {
        if stream.read_buf(&mut read).await? == 0 || read.len() > MAX {
            return Err(bad());
        }
        if let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(read.get(..end).unwrap_or_default()).to_ascii_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0);
    while read.len() < (end + length).min(MAX) {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(bad());
        }
    }
    head.split(' ').nth(1).map(str::to_owned).ok_or_else(bad)
}
