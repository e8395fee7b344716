//! Schemas and URLs.

use super::*;
use crate::common::postgres::{direct, schema};

#[tokio::test]
async fn a_schema_is_migrated_before_it_is_opened() {
    let Some(url) = direct() else {
        return;
    };
    let schema = schema();
    let open = || PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let missing = open().await.unwrap_err();
    assert!(
        matches!(
            missing,
            Fault::Outdated {
                found: 0,
                needed: 4
            }
        ),
        "{missing:?}"
    );
    let database = connect(&url).await;
    let create = format!("CREATE SCHEMA {schema}");
    database.batch_execute(&create).await.unwrap();
    assert!(matches!(
        open().await,
        Err(Fault::Outdated { found: 0, .. })
    ));
    // Several processes that start at the same time.
    let migrate = || PostgresStore::migrate(&url, &schema);
    let (a, b, c) = tokio::join!(migrate(), migrate(), migrate());
    for migrated in [a, b, c] {
        migrated.unwrap();
    }
    let store = open().await.unwrap();
    begin(&store, "run").await;
    // A later migration changes nothing.
    migrate().await.unwrap();
    store.get(key("run")).await.unwrap();

    let set = |columns: &str| format!("UPDATE {schema}.meta SET {columns}");
    // A release that still supports this one.
    database.batch_execute(&set("version = 9")).await.unwrap();
    open().await.unwrap();
    migrate().await.unwrap();
    database.batch_execute(&set("oldest = 9")).await.unwrap();
    for newer in [open().await.err(), migrate().await.err()] {
        let newer = newer.unwrap();
        assert!(
            matches!(newer, Fault::Newer { found: 9, known: 4 }),
            "{newer:?}"
        );
    }
    let other = "application = 'other', oldest = 1";
    database.batch_execute(&set(other)).await.unwrap();
    assert!(matches!(open().await, Err(Fault::Foreign)));
    assert!(matches!(migrate().await, Err(Fault::Foreign)));
}

#[tokio::test]
async fn a_schema_of_version_1_is_migrated_while_it_is_used() {
    let Some(url) = direct() else {
        return;
    };
    let schema = schema();
    let database = connect(&url).await;
    let first = include_str!("../../../src/postgres/schema1.sql");
    let create = format!(
        "BEGIN; CREATE SCHEMA {schema}; SET LOCAL search_path = {schema}, pg_temp; {first};
         UPDATE meta SET version = 1; COMMIT"
    );
    database.batch_execute(&create).await.unwrap();
    let open = || PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let outdated = open().await.unwrap_err();
    assert!(
        matches!(outdated, Fault::Outdated { found: 1, .. }),
        "{outdated:?}"
    );
    PostgresStore::migrate(&url, &schema).await.unwrap();
    let store = open().await.unwrap();
    let change = running("hi").into();
    let begun = store.begin(key("run"), client("run"), change, Duration::ZERO);
    begun.await.unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    // A process of the release before.
    let claim = format!(
        "SELECT o_code FROM {schema}.run_claim('acme', 'thread', 'run', {version}, '1', NULL, 0, NULL)"
    );
    let claimed = database.query_one(&claim, &[]).await.unwrap();
    assert_eq!(claimed.get::<_, String>(0), "ok");
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.status, record.takeovers), (RunStatus::Abandoned, 1));
    let claimed = store.claim(record, vec![], LEASE).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap(), claimed);
}

#[tokio::test]
async fn a_schema_of_another_program_is_left_alone() {
    let Some(url) = direct() else {
        return;
    };
    let schema = schema();
    let database = connect(&url).await;
    let create = format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.meta (version integer)");
    database.batch_execute(&create).await.unwrap();
    let migrated = PostgresStore::migrate(&url, &schema).await.unwrap_err();
    assert!(matches!(migrated, Fault::Foreign), "{migrated:?}");
    let opened = PostgresStore::open_with(&url, Options::new().schema(schema.as_str())).await;
    assert!(matches!(opened, Err(Fault::Foreign)));
}

#[tokio::test]
async fn a_role_without_rights_to_create_can_use_the_store() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let database = connect(&url).await;
    let role = format!("role_{schema}");
    let grant = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    );
    database.batch_execute(&grant).await.unwrap();
    let url = url.replacen("//postgres@", &format!("//{role}@"), 1);
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    let fence = begin(&store, "run").await;
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let migrated = PostgresStore::migrate(&url, "test_of_a_role")
        .await
        .unwrap_err();
    assert!(matches!(migrated, Fault::Database(_)), "{migrated:?}");
}

#[tokio::test]
async fn a_role_that_owns_a_schema_can_migrate_it() {
    let Some(url) = direct() else {
        return;
    };
    let (database, schema) = (connect(&url).await, schema());
    let role = format!("owner_{schema}");
    let create = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}");
    database.batch_execute(&create).await.unwrap();
    let url = url.replacen("//postgres@", &format!("//{role}@"), 1);
    PostgresStore::migrate(&url, &schema).await.unwrap();
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    begin(&store.await.unwrap(), "run").await;
}

/// The text of an error and of its causes.
fn text(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    text
}

/// The time that is waited for a server that is not there.
const SHORT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn errors_do_not_contain_the_password() {
    for url in [
        "postgres://user:hunter2@127.0.0.1:1/db",
        "postgres://user:p@hunter2?hunter2@127.0.0.1:1/db",
        "postgres://user:hunter2@127.0.0.1:1/db?sslmode=verify-full",
        "postgres://user:hunter2@127.0.0.1:1/db?sslmode=require",
        "postgres://user:hunter2@127.0.0.1:hunter2/db",
        "host=127.0.0.1 port=1 password=hunter2 hunter2=x",
        "hunter2",
    ] {
        let options = Options::new().pool_wait(SHORT);
        let error = PostgresStore::open_with(url, options).await.unwrap_err();
        assert!(matches!(error, Fault::Database(_)), "{error:?}");
        assert!(!text(&error).contains("hunter2"), "{error:?}");
        let error = PostgresStore::migrate(url, "s").await.unwrap_err();
        assert!(!text(&error).contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn the_name_of_a_schema_is_a_plain_one() {
    let url = "postgres://user@127.0.0.1:1/db";
    for name in [
        "",
        "A",
        "1",
        "a-b",
        "a\"; DROP TABLE runs; --",
        "pg_catalog",
        "é",
        &"a".repeat(64),
    ] {
        let name = name.to_owned();
        let opened = PostgresStore::open_with(url, Options::new().schema(name.clone())).await;
        let opened = text(&opened.unwrap_err());
        assert!(opened.contains("name of the schema"), "{opened}");
        let migrated = PostgresStore::migrate(url, &name).await.unwrap_err();
        assert!(text(&migrated).contains("name of the schema"));
    }
    let options = Options::new().schema("a".repeat(63)).pool_wait(SHORT);
    let unreachable = PostgresStore::open_with(url, options).await;
    let unreachable = text(&unreachable.unwrap_err());
    assert!(!unreachable.contains("name of the schema"), "{unreachable}");
}

#[cfg(not(feature = "postgres-rustls"))]
#[tokio::test]
async fn a_url_that_requires_tls_fails_clearly() {
    let url = "postgres://user@127.0.0.1:1/db?sslmode=require";
    let error = text(&PostgresStore::open(url).await.unwrap_err());
    assert!(error.contains("the URL requires TLS"), "{error}");
}
