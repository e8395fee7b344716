//! Settings of servers, marks of stores, and URLs.

use super::*;
use crate::common::redis::{schema, url};

#[tokio::test]
async fn a_server_that_loses_writes_is_refused_unless_that_is_accepted() {
    let Some(url) = url("CONCENTRIC_REDIS_VOLATILE") else {
        return;
    };
    let _held = redis::VOLATILE.lock().await;
    let mut server = connect(&url).await;
    let open = async |accept: bool| {
        let options = Options::new().schema(schema()).accept_loss(accept);
        RedisStore::open_with(&url, options).await
    };
    let defaults = [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
    ];
    for (setting, value) in defaults {
        command(&mut server, &["CONFIG", "SET", setting, value]).await;
    }
    let needed = ["yes", "always", "no", "noeviction"];
    for ((setting, value), needed) in defaults.into_iter().zip(needed) {
        match open(false).await.unwrap_err() {
            Fault::Volatile {
                setting: of,
                found,
                needed: must,
            } => assert_eq!((&*of, &*found, &*must), (setting, value, needed)),
            other => panic!("{other:?}"),
        }
        open(true).await.unwrap();
        command(&mut server, &["CONFIG", "SET", setting, needed]).await;
    }
    let store = open(false).await.unwrap();
    begin(&store, "run").await;
}

#[tokio::test]
async fn keys_of_another_program_are_left_alone() {
    let Some(url) = direct() else {
        return;
    };
    let mut server = connect(&url).await;
    let schema = schema();
    let open = || RedisStore::open_with(&url, Options::new().schema(schema.as_str()));
    let mark = format!("{schema}:{{meta}}");
    command(&mut server, &["SET", &mark, "x"]).await;
    assert!(matches!(open().await, Err(Fault::Foreign)));
    command(&mut server, &["DEL", &mark]).await;
    command(
        &mut server,
        &["HSET", &mark, "application", "other", "version", "1"],
    )
    .await;
    assert!(matches!(open().await, Err(Fault::Foreign)));
    command(
        &mut server,
        &["HSET", &mark, "application", "concentric", "version", "9"],
    )
    .await;
    let newer = open().await.unwrap_err();
    assert!(
        matches!(newer, Fault::Newer { found: 9, known: 1 }),
        "{newer:?}"
    );
    command(&mut server, &["DEL", &mark]).await;
    open().await.unwrap();
    open().await.unwrap();
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

#[tokio::test]
async fn errors_do_not_contain_the_password() {
    let mut urls = vec![
        "redis://user:hunter2@127.0.0.1:1/0".to_owned(),
        "redis://user:p@hunter2?hunter2@127.0.0.1:1/0".to_owned(),
        "redis://user:hunter2@127.0.0.1:hunter2/0".to_owned(),
        "redis://user:hunter2@127.0.0.1:1/hunter2".to_owned(),
        "rediss://user:hunter2@127.0.0.1:1/0".to_owned(),
        "hunter2".to_owned(),
    ];
    // A password that the server refuses.
    urls.extend(direct().map(|url| url.replacen("redis://", "redis://user:hunter2@", 1)));
    for url in urls {
        let options = Options::new().pool_wait(Duration::from_millis(100));
        let error = RedisStore::open_with(&url, options).await.unwrap_err();
        assert!(matches!(error, Fault::Database(_)), "{error:?}");
        assert!(!text(&error).contains("hunter2"), "{error:?}");
    }
    if let Some((store, _)) = redis::store(Options::new()).await {
        assert_eq!(format!("{store:?}"), "RedisStore { .. }");
    }
}

#[cfg(not(feature = "redis-rustls"))]
#[tokio::test]
async fn a_url_that_requires_tls_fails_clearly() {
    let error = text(
        &RedisStore::open("rediss://127.0.0.1:1/0")
            .await
            .unwrap_err(),
    );
    assert!(error.contains("requires TLS"), "{error}");
}

#[tokio::test]
async fn an_unreachable_server_fails_in_time() {
    let options = Options::new().pool_wait(Duration::from_millis(300));
    let began = std::time::Instant::now();
    let error = RedisStore::open_with("redis://127.0.0.1:1/0", options)
        .await
        .unwrap_err();
    assert!(matches!(error, Fault::Database(_)), "{error:?}");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn the_name_of_a_store_is_a_plain_one() {
    for name in ["", "A", "1", "a-b", "a{b}", "é", &"a".repeat(64)] {
        let options = Options::new().schema(name.to_owned());
        let opened = RedisStore::open_with("redis://127.0.0.1:1/0", options).await;
        let opened = text(&opened.unwrap_err());
        assert!(opened.contains("name of the schema"), "{opened}");
    }
}
