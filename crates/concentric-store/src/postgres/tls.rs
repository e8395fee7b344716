//! Encrypted connections.

#[cfg(feature = "postgres-rustls")]
pub(super) use self::rustls::{Connector, connector};
#[cfg(not(feature = "postgres-rustls"))]
pub(super) use self::without::{Connector, connector};

#[cfg(not(feature = "postgres-rustls"))]
mod without {
    use crate::{Fault, Options};
    use tokio_postgres::{Config, NoTls, config::SslMode};

    pub(in super::super) type Connector = NoTls;

    pub(in super::super) fn connector(
        config: &mut Config,
        _: &Options,
    ) -> Result<Connector, Fault> {
        match config.get_ssl_mode() {
            SslMode::Require => Err(super::super::pool::database(
                "the URL requires TLS, which concentric-store supports with the feature `postgres-rustls`",
            )),
            _ => Ok(NoTls),
        }
    }
}

#[cfg(feature = "postgres-rustls")]
mod rustls {
    use super::super::pool::database;
    use crate::{Fault, Options};
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem::PemObject},
    };
    use std::{
        future::Future,
        io,
        pin::Pin,
        sync::Arc,
        task::{Context, Poll},
    };
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio_postgres::{
        Config, Socket,
        config::SslMode,
        tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
    };
    use tokio_rustls::{TlsConnector, client};

    /// Encrypts connections if the URL requires it; otherwise none, as without this feature.
    #[derive(Clone)]
    pub(in super::super) struct Connector(TlsConnector);

    pub(in super::super) fn connector(
        config: &mut Config,
        options: &Options,
    ) -> Result<Connector, Fault> {
        let mut roots = RootCertStore::empty();
        match &options.root_certificates {
            _ if config.get_ssl_mode() != SslMode::Require => {
                config.ssl_mode(SslMode::Disable);
            }
            Some(pem) => {
                let unreadable = "a root certificate is unreadable";
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate = certificate.map_err(|_| database(unreadable))?;
                    roots.add(certificate).map_err(|_| database(unreadable))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::Database(Box::new(error)))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Connector(Arc::new(config).into()))
    }

    impl MakeTlsConnect<Socket> for Connector {
        type Stream = Stream;
        type TlsConnect = Connection;
        type Error = InvalidDnsNameError;

        fn make_tls_connect(&mut self, host: &str) -> Result<Connection, Self::Error> {
            let name = ServerName::try_from(host.to_owned())?;
            Ok(Connection(self.0.clone(), name))
        }
    }

    /// A connection to the server of this name.
    pub(in super::super) struct Connection(TlsConnector, ServerName<'static>);

    impl TlsConnect<Socket> for Connection {
        type Stream = Stream;
        type Error = io::Error;
        // The type of the future cannot be named.
        type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

        fn connect(self, socket: Socket) -> Self::Future {
            let Self(connector, name) = self;
            Box::pin(async move { connector.connect(name, socket).await.map(Stream) })
        }
    }

    pub(in super::super) struct Stream(client::TlsStream<Socket>);

    impl TlsStream for Stream {
        fn channel_binding(&self) -> ChannelBinding {
            ChannelBinding::none()
        }
    }

    impl AsyncRead for Stream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
}

/// Returns whether a connection failed because of the certificate of the server.
pub(super) fn is_untrusted(error: &tokio_postgres::Error) -> bool {
    #[cfg(feature = "postgres-rustls")]
    {
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let inner = error.downcast_ref::<std::io::Error>();
            let inner = inner.and_then(std::io::Error::get_ref);
            let inner = inner.and_then(|it| it.downcast_ref::<::rustls::Error>());
            if matches!(inner, Some(::rustls::Error::InvalidCertificate(_))) {
                return true;
            }
            cause = error.source();
        }
    }
    let _ = error;
    false
}
