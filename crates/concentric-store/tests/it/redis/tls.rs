//! Encrypted connections to the server, whose certificate `.ci/redis` makes.

use super::*;
use crate::common::redis::{schema, url};

#[tokio::test]
async fn a_url_that_requires_tls_encrypts_all_connections() {
    // The server has no port without encryption.
    let (Some(url), Some(ca)) = (url("CONCENTRIC_REDIS_TLS"), url("CONCENTRIC_REDIS_CA")) else {
        return;
    };
    let pem = std::fs::read_to_string(ca).unwrap();
    let options = Options::new().schema(schema()).root_certificates(pem);
    let store = RedisStore::open_with(&url, options.clone()).await.unwrap();
    let fence = begin(&store, "run").await;
    let _ = store.renew(key("run"), fence, LEASE).await.unwrap();

    // Of an unknown authority, or for another host.
    let other = url.replacen("127.0.0.1", "localhost", 1);
    for (url, options) in [(&url, Options::new()), (&other, options)] {
        let opened = RedisStore::open_with(url, options).await;
        assert!(matches!(opened, Err(Fault::Untrusted(_))), "{opened:?}");
    }
    let unreadable = Options::new()
        .root_certificates("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let opened = RedisStore::open_with(&url, unreadable).await;
    assert!(matches!(opened, Err(Fault::Database(_))), "{opened:?}");
    let plain = url.replacen("rediss:", "redis:", 1);
    let options = Options::new().pool_wait(Duration::from_millis(100));
    let opened = RedisStore::open_with(&plain, options).await;
    assert!(matches!(opened, Err(Fault::Database(_))), "{opened:?}");
}
