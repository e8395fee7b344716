//! Damaged keys, full memory, and a server that requires a password.

use super::*;
use crate::common::{
    key_of, question,
    redis::{schema, url},
};
use concentric_core::{
    Reply,
    store::{Decisions, StoredDecision, StoredScope},
};

async fn begin_left(store: &RedisStore, tenant: &'static str, run: &'static str) {
    let change = running("hi").into();
    let begun = store.begin(key_of(tenant, run), client(run), change, Duration::ZERO);
    begun.await.unwrap();
}

#[tokio::test]
async fn a_tenant_that_cannot_be_read_does_not_stop_the_others() {
    let Some((store, schema)) = redis::store(Options::new().keep_ended(Duration::ZERO)).await
    else {
        return;
    };
    begin_left(&store, "damaged", "run").await;
    for run in ["left", "ended"] {
        begin_left(&store, "acme", run).await;
    }
    let mut database = connect(&direct().unwrap()).await;
    // Not an index.
    let index = format!("{schema}:{{t:damaged}}:l");
    command(&mut database, &["SET", &index, "x"]).await;
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 2);
    // Nothing else is abandoned.
    let failed = store.claim_abandoned(9, LEASE).await.unwrap_err();
    assert!(matches!(fault(&failed), Fault::Database(_)), "{failed:?}");

    let ended = claimed.iter().find(|it| it.key.run.as_str() == "ended");
    let run = format!("{schema}:{{t:acme}}:r:thread:ended");
    for (field, value) in [("status", "ended"), ("since", "1")] {
        command(&mut database, &["HSET", &run, field, value]).await;
    }
    let index = format!("{schema}:{{t:acme}}:e");
    command(&mut database, &["ZADD", &index, "1", "thread:ended"]).await;
    let failed = store.purge().await.unwrap_err();
    assert!(matches!(fault(&failed), Fault::Database(_)), "{failed:?}");
    let read = store.get(ended.unwrap().key.clone()).await;
    assert!(matches!(read, Err(StoreError::NotFound)), "{read:?}");
}

#[tokio::test]
async fn an_index_without_versions_is_repaired() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    for name in ["b", "c", "a"] {
        let append = store.append(
            tenant("acme"),
            ThreadId::new(name),
            0,
            ThreadChange::default(),
        );
        append.await.unwrap();
    }
    let mut database = connect(&direct().unwrap()).await;
    let index = format!("{schema}:{{t:acme}}:tz");
    for name in ["b", "c", "a", "gone"] {
        command(&mut database, &["ZADD", &index, "0", name]).await;
    }
    let mut before = None;
    for expected in ["a", "c", "b"] {
        let page = store.list_threads(tenant("acme"), before, 1).await.unwrap();
        assert_eq!(page[0].thread.as_str(), expected);
        before = Some(page[0].version);
    }
    let rest = store.list_threads(tenant("acme"), before, 9).await;
    assert_eq!(rest.unwrap(), []);
}

/// The list that has a tenant.
fn shard(tenant: &str) -> u16 {
    let crc = tenant.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % 8
}

#[tokio::test]
async fn many_tenants_that_cannot_be_read_do_not_hide_the_others() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let mut database = connect(&direct().unwrap()).await;
    begin_left(&store, "acme", "run").await;
    let lists = keys(&schema).await;
    let list = lists.iter().find(|key| key.ends_with(":due")).unwrap();
    let names = (0..).map(|n| format!("damaged{n}"));
    let in_list = names.filter(|name| shard(name) == shard("acme"));
    for name in in_list.take(300) {
        // Not an index.
        let index = format!("{schema}:{{t:{name}}}:l");
        command(&mut database, &["SET", &index, "x"]).await;
        command(&mut database, &["ZADD", list, "1", &name]).await;
    }
    let failed = store.claim_abandoned(9, LEASE).await.unwrap_err();
    assert!(matches!(fault(&failed), Fault::Database(_)), "{failed:?}");
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 1);
}

#[tokio::test]
async fn a_run_without_all_fields_is_corrupt_and_others_go_on() {
    let options = Options::new().keep_waiting(Duration::from_secs(3_600));
    let Some((store, schema)) = redis::store(options).await else {
        return;
    };
    let mut database = connect(&direct().unwrap()).await;
    let fields = [
        "version",
        "fence",
        "till",
        "takeovers",
        "client",
        "log",
        "len",
        "bytes",
        "chain",
        "hd",
        "rd",
        "n",
    ];
    for field in fields {
        begin_left(&store, "acme", field).await;
        let run = format!("{schema}:{{t:acme}}:r:thread:{field}");
        command(&mut database, &["HDEL", &run, field]).await;
    }
    begin_left(&store, "acme", "whole").await;
    let listed = store.list_by_thread(tenant("acme"), id("thread"), None, 1);
    let listed = listed.await.unwrap();
    let names: Vec<_> = listed.iter().map(|it| it.key.run.as_str()).collect();
    assert_eq!(names, ["whole"]);
    store.purge().await.unwrap();
    let claimed = store.claim_abandoned(1, LEASE).await.unwrap();
    let names: Vec<_> = claimed.iter().map(|it| it.key.run.as_str()).collect();
    assert_eq!(names, ["whole"]);
    assert!(store.claim_abandoned(9, LEASE).await.unwrap().is_empty());
    for field in fields {
        let read = store.get(key(field)).await.unwrap_err();
        assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
        for version in [0, claimed[0].version] {
            let mut record = claimed[0].clone();
            (record.key, record.version) = (key(field), version);
            let claim = store.claim(record, vec![], LEASE).await.unwrap_err();
            assert!(matches!(fault(&claim), Fault::Corrupt { .. }), "{claim:?}");
        }
    }
    // It waits, or has ended, at an unknown time.
    for status in ["suspended", "ended", "other"] {
        let run = format!("{schema}:{{t:acme}}:r:thread:till");
        command(&mut database, &["HSET", &run, "status", status]).await;
        store.purge().await.unwrap();
        let read = store.get(key("till")).await.unwrap_err();
        assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
        let listed = store.list_by_thread(tenant("acme"), id("thread"), None, 99);
        assert_eq!(listed.await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_run_with_another_checksum_is_not_claimed() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let mut database = connect(&direct().unwrap()).await;
    for field in ["sum", "chain", "hd", "rd"] {
        begin_left(&store, "acme", field).await;
        let record = store.get(key(field)).await.unwrap();
        let run = format!("{schema}:{{t:acme}}:r:thread:{field}");
        command(&mut database, &["HSET", &run, field, "x"]).await;
        let replies = vec![Reply::approve(question("q"))];
        let claim = store.claim(record, replies, LEASE).await.unwrap_err();
        assert!(matches!(fault(&claim), Fault::Corrupt { .. }), "{claim:?}");
    }
}

#[tokio::test]
async fn overdue_runs_are_ended_where_abandoned_ones_are_sought() {
    let options = Options::new().keep_waiting(Duration::from_secs(3_600));
    let Some((store, schema)) = redis::store(options).await else {
        return;
    };
    for run in ["overdue", "left"] {
        begin_left(&store, "acme", run).await;
    }
    let mut database = connect(&direct().unwrap()).await;
    let base = format!("{schema}:{{t:acme}}");
    let run = format!("{base}:r:thread:overdue");
    command(&mut database, &["HSET", &run, "till", "1"]).await;
    let index = format!("{base}:l");
    command(&mut database, &["ZADD", &index, "1", "thread:overdue"]).await;
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let indexed = list(command(&mut database, &["ZRANGE", &index, "0", "-1"]).await);
    assert_eq!(indexed, ["thread:left"]);
    let status = redis::text(command(&mut database, &["HGET", &run, "status"]).await);
    assert_eq!(status, "ended");
}

#[tokio::test]
async fn claims_of_runs_that_are_not_read_are_given_back() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    for run in ["a", "b"] {
        begin_left(&store, "acme", run).await;
    }
    let mut database = connect(&direct().unwrap()).await;
    // Not a set, so that only the run itself cannot be read.
    let asked = ["a", "b"].map(|run| format!("{schema}:{{t:acme}}:q:thread:{run}"));
    for key in &asked {
        command(&mut database, &["SET", key, "x"]).await;
    }
    for _ in 0..7 {
        let error = store.claim_abandoned(9, LEASE).await.unwrap_err();
        assert!(matches!(fault(&error), Fault::Database(_)), "{error:?}");
    }
    for key in &asked {
        command(&mut database, &["DEL", key]).await;
    }
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    let mut claims: Vec<_> = claimed
        .iter()
        .map(|it| (it.key.run.as_str(), it.takeovers))
        .collect();
    claims.sort_unstable();
    assert_eq!(claims, [("a", 1), ("b", 1)]);
    for record in claimed {
        assert_eq!(store.get(record.key.clone()).await.unwrap(), record);
    }
}

#[tokio::test]
async fn runs_are_ended_and_removed_while_the_memory_is_full() {
    let Some(url) = url("CONCENTRIC_REDIS_VOLATILE") else {
        return;
    };
    let _held = redis::VOLATILE.lock().await;
    let mut server = connect(&url).await;
    let schema = schema();
    let options = Options::new()
        .schema(schema.as_str())
        .accept_loss(true)
        .keep_ended(Duration::ZERO);
    let store = RedisStore::open_with(&url, options).await.unwrap();
    let fences = [begin(&store, "ends").await, begin(&store, "waits").await];
    let suspended = store.suspend(key("waits"), fences[1], waiting("hi", "q").into());
    suspended.await.unwrap();
    for (setting, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "1")] {
        command(&mut server, &["CONFIG", "SET", setting, value]).await;
    }
    let change = running("hi").into();
    let begun = store.begin(key("new"), client("new"), change, LEASE).await;
    let ended = store
        .end(key("ends"), fences[0], Ok(Outcome::Completed))
        .await;
    let withdrawn = store.withdraw(tenant("acme"), id("thread")).await;
    let purged = store.purge().await;
    command(&mut server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    begun.unwrap_err();
    ended.unwrap();
    assert_eq!(withdrawn.unwrap(), 1);
    purged.unwrap();
    for run in ["ends", "waits"] {
        let read = store.get(key(run)).await;
        assert!(matches!(read, Err(StoreError::NotFound)), "{read:?}");
    }
}

#[tokio::test]
async fn a_missing_password_is_reported_as_such() {
    let Some(url) = url("CONCENTRIC_REDIS_VOLATILE") else {
        return;
    };
    let _held = redis::VOLATILE.lock().await;
    let mut server = connect(&url).await;
    command(&mut server, &["CONFIG", "SET", "requirepass", "secret"]).await;
    let opened = RedisStore::open_with(&url, Options::new().schema(schema())).await;
    command(&mut server, &["CONFIG", "SET", "requirepass", ""]).await;
    let error = opened.unwrap_err();
    assert!(matches!(error, Fault::Database(_)), "{error:?}");
    assert!(format!("{error:?}").contains("NOAUTH"), "{error:?}");
}

/// Decisions of other runs and conversations about a tool are not examined.
#[tokio::test]
async fn a_decision_is_indexed_by_the_calls_that_it_applies_to() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let scopes = [
        StoredScope::Always,
        StoredScope::Session(id("t")),
        StoredScope::Thread(id("t")),
        StoredScope::Run {
            thread: Some(id("t")),
            run: RunId::new("r"),
        },
    ];
    for scope in scopes {
        let (tool, definition) = ("a:b".into(), "d".into());
        let at = std::time::SystemTime::UNIX_EPOCH;
        let decision = StoredDecision::new(
            tenant("acme"),
            tool,
            definition,
            None,
            scope,
            true,
            None,
            at,
        );
        store.remember(decision).await.unwrap();
    }
    let first = format!("{schema}:{{t:acme}}:dt:");
    let mut indexes = keys(&schema).await;
    indexes.retain(|key| key.starts_with(&first));
    indexes.sort();
    let expected = ["always", "run:t:r", "session:t", "thread:t"];
    assert_eq!(indexes, expected.map(|of| format!("{first}a%3Ab:{of}")));
}
