//! A proxy between a worker and the server, which can cut the connections.

use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What happens to the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Connections are closed, and further ones refused.
    Closed,
    /// No byte arrives. A connection that was silent is closed when the link is up again.
    Silent,
}

pub struct Proxy {
    pub url: String,
    link: Arc<watch::Sender<Link>>,
}

impl Proxy {
    pub async fn start(url: &str) -> Self {
        let server = url.split_once('@').unwrap().1.split('/').next().unwrap();
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = url.replacen(&server, &format!("127.0.0.1:{port}"), 1);
        let link = Arc::new(watch::Sender::new(Link::Up));
        let proxy = Self {
            url,
            link: Arc::clone(&link),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, link) = (server.clone(), link.subscribe());
                tokio::spawn(serve(client, server, link));
            }
        });
        proxy
    }

    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn serve(mut client: TcpStream, server: String, mut link: watch::Receiver<Link>) {
    let now = *link.borrow_and_update();
    if now != Link::Up {
        if now == Link::Silent {
            let _ = link.changed().await;
        }
        return;
    }
    // The server may be starting.
    let Ok(mut server) = TcpStream::connect(&server).await else {
        return;
    };
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let sent = tokio::select! {
            biased;
            _ = link.changed() => {
                if *link.borrow_and_update() == Link::Silent {
                    let _ = link.changed().await;
                }
                return;
            }
            read = client.read(&mut from_client) => match read {
                Ok(len) if len > 0 => server.write_all(&from_client[..len]).await,
                _ => return,
            },
            read = server.read(&mut from_server) => match read {
                Ok(len) if len > 0 => client.write_all(&from_server[..len]).await,
                _ => return,
            },
        };
        if sent.is_err() {
            return;
        }
    }
}
