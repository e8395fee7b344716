//! Encrypted connections to the server, whose certificate `.ci/postgres` makes.

use super::*;
use crate::common::postgres::{direct, schema, url};

#[tokio::test]
async fn a_url_that_requires_tls_encrypts_all_connections() {
    let (Some(url), Some(ca)) = (direct(), url("CONCENTRIC_POSTGRES_CA")) else {
        return;
    };
    let pem = std::fs::read_to_string(ca).unwrap();
    let schema = schema();
    let encrypted = format!("{url}?sslmode=require&application_name={schema}");
    let options = Options::new()
        .schema(schema.as_str())
        .root_certificates(pem);
    PostgresStore::migrate_with(&encrypted, &options)
        .await
        .unwrap();
    let store = PostgresStore::open_with(&encrypted, options.clone());
    let store = store.await.unwrap();
    let fence = begin(&store, "run").await;
    let _ = store.renew(key("run"), fence, LEASE).await.unwrap();
    let database = connect(&url).await;
    let connections = |ssl: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a ON a.pid = s.pid
             WHERE a.application_name = '{schema}' AND {ssl}"
        )
    };
    assert_eq!(number(&database, &connections("ssl")).await, 2);
    assert_eq!(number(&database, &connections("NOT ssl")).await, 0);

    // Of an unknown authority, or for another host.
    let unknown = Options::new().schema(schema.as_str());
    let host = "127.0.0.1";
    let other = encrypted.replacen(host, "other.example", 1) + "&hostaddr=" + host;
    for (url, options) in [(&encrypted, unknown), (&other, options)] {
        let opened = PostgresStore::open_with(url, options.clone()).await;
        assert!(matches!(opened, Err(Fault::Untrusted(_))), "{opened:?}");
        let migrated = PostgresStore::migrate_with(url, &options).await;
        assert!(matches!(migrated, Err(Fault::Untrusted(_))), "{migrated:?}");
    }
    let unreadable = Options::new()
        .root_certificates("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let opened = PostgresStore::open_with(&encrypted, unreadable).await;
    assert!(matches!(opened, Err(Fault::Database(_))), "{opened:?}");
}
