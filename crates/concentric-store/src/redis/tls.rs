//! URLs, and encrypted connections.

use super::db::database;
use crate::{Fault, Options};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

/// Reads the URL of a server. Errors do not contain it, since it may contain a password.
pub(super) fn info(url: &str, options: &Options) -> Result<ConnectionInfo, Fault> {
    match url.into_connection_info() {
        Ok(info) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
            encrypted(info, options)
        }
        Ok(info) => Ok(info),
        Err(_) if is_encrypted(url) && !cfg!(feature = "redis-rustls") => Err(unsupported()),
        Err(_) => Err(database("the URL of the server is malformed")),
    }
}

fn is_encrypted(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("rediss") || scheme.eq_ignore_ascii_case("valkeys")
}

fn unsupported() -> Fault {
    database(
        "the URL requires TLS, which concentric-store supports with the feature `redis-rustls`",
    )
}

#[cfg(not(feature = "redis-rustls"))]
fn encrypted(_: ConnectionInfo, _: &Options) -> Result<ConnectionInfo, Fault> {
    Err(unsupported())
}

#[cfg(feature = "redis-rustls")]
fn encrypted(info: ConnectionInfo, options: &Options) -> Result<ConnectionInfo, Fault> {
    use rustls::crypto::{CryptoProvider, ring};

    // The connections take that of the process, and would panic if the program has linked two and set none.
    if CryptoProvider::get_default().is_none() {
        // Another thread may have set one.
        let _ = ring::default_provider().install_default();
    }
    let Some(pem) = &options.root_certificates else {
        return Ok(info);
    };
    let certificates = redis::TlsCertificates {
        client_tls: None,
        root_cert: Some(pem.as_bytes().to_vec()),
    };
    let client = redis::Client::build_with_tls(info, certificates);
    let client = client.map_err(|_| database("a root certificate is unreadable"))?;
    Ok(client.get_connection_info().clone())
}

/// Returns whether a connection failed because of the certificate of the server.
pub(super) fn is_untrusted(error: &RedisError) -> bool {
    #[cfg(feature = "redis-rustls")]
    {
        use std::{error::Error, io, sync::Arc};

        type Shared = Arc<dyn Error + Send + Sync>;
        let cause = error.source().and_then(|it| it.downcast_ref::<Shared>());
        let cause = cause.and_then(|it| it.downcast_ref::<io::Error>());
        let cause = cause.and_then(io::Error::get_ref);
        let cause = cause.and_then(|it| it.downcast_ref());
        if let Some(rustls::Error::InvalidCertificate(_)) = cause {
            return true;
        }
    }
    let _ = error;
    false
}
