//! The cost of runs in SQLite, and the deletion of their turns.

use crate::common::{
    client,
    file::{self, assert_equal, count, empty_log, file, logged, open},
    key, running_after, secs, set, tenant, waiting,
};
use concentric_core::{
    Outcome, ThreadId, Transcript, Turn,
    store::{RunChange, RunStore, StoreError, ThreadChange, ThreadStore},
};
use concentric_store::{Options, SqliteStore};
use std::time::Duration;

fn turn(n: usize) -> Turn {
    Turn::user(format!("{n:06} {}", "x".repeat(500)))
}

fn turns(len: usize) -> Transcript {
    (0..len).map(turn).collect()
}

async fn begun(store: &SqliteStore, run: &str, transcript: &Transcript) -> u64 {
    let state = running_after(transcript.clone());
    let begun = RunStore::begin(store, key(run), client(run), state.into(), secs(30));
    begun.await.unwrap()
}

#[tokio::test]
async fn the_bytes_of_a_save_do_not_grow_with_the_conversation() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let mut found = Vec::new();
    for start in [10, 1_000, 10_000] {
        let mut transcript = turns(start);
        let run = format!("run {start}");
        let fence = begun(&store, &run, &transcript).await;
        empty_log(&path);
        for n in 0..100 {
            let stored = running_after(transcript.clone());
            transcript.push(turn(start + n));
            let state = running_after(transcript.clone());
            let change = RunChange::since(&stored, &state);
            let saved = store.save(key(&run), fence, change, secs(30));
            saved.await.unwrap();
        }
        let bytes = logged(&path) / 100;
        println!("{bytes} bytes per save after {start} turns");
        found.push(bytes);
        let record = store.get(key(&run)).await.unwrap();
        assert_eq!(*record.state.transcript(), transcript);
    }
    assert_equal(&found);
}

#[tokio::test]
async fn a_run_has_the_turns_of_its_last_change() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let fence = begun(&store, "run", &turns(10)).await;
    // Like the end of an agent in place of the model, whose turns are no longer needed.
    let state = running_after(turns(10).prefix(4));
    let change = RunChange::since(&running_after(turns(10)), &state);
    assert_eq!((change.keep, change.turns.len()), (4, 0));
    let saved = store.save(key("run"), fence, change, secs(30));
    saved.await.unwrap();
    assert_eq!(file::turns(&path), 4);
    assert_eq!(store.get(key("run")).await.unwrap().state, state);
    // In place: no other log shares the turns.
    assert_eq!(count(&path, "logs"), 1);

    let mut change = RunChange::new(&state);
    (change.keep, change.turns) = (5, Vec::new());
    let saved = store.save(key("run"), fence, change, secs(30)).await;
    assert!(matches!(saved, Err(StoreError::Unwritable(_))), "{saved:?}");
    assert_eq!(store.get(key("run")).await.unwrap().state, state);
}

#[tokio::test]
async fn the_turns_of_a_removed_run_are_removed() {
    let (_dir, path) = file();
    let options = Options::new().keep_ended(Duration::ZERO);
    let store = SqliteStore::open_with(&path, options).unwrap();
    // By its end.
    let fence = begun(&store, "ended", &turns(3)).await;
    assert_eq!(file::turns(&path), 3);
    store
        .end(key("ended"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    assert_eq!((file::turns(&path), count(&path, "logs")), (0, 0));
    // With its conversation.
    let fence = begun(&store, "waits", &turns(3)).await;
    let suspended = store.suspend(key("waits"), fence, waiting("hi", "q").into());
    suspended.await.unwrap();
    assert_eq!(file::turns(&path), 1);
    let mut change = ThreadChange::default();
    change.turns = vec![turn(0)];
    let thread = || ThreadId::new("thread");
    let append = store.append(tenant("acme"), thread(), 0, change);
    append.await.unwrap();
    store.delete(tenant("acme"), thread()).await.unwrap();
    assert_eq!((file::turns(&path), count(&path, "logs")), (0, 0));
}

#[tokio::test]
async fn a_run_shares_the_turns_of_its_conversation() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let thread = || ThreadId::new("thread");
    let mut change = ThreadChange::default();
    change.turns = turns(10).turns_after(0);
    let version = store
        .append(tenant("acme"), thread(), 0, change)
        .await
        .unwrap();
    // A run continues the conversation; another one, with a history that is not that of the store, does not.
    begun(&store, "run", &turns(11)).await;
    assert_eq!((file::turns(&path), count(&path, "logs")), (11, 2));
    let other: Transcript = (1..12).map(turn).collect();
    begun(&store, "other", &other).await;
    assert_eq!((file::turns(&path), count(&path, "logs")), (22, 3));
    begun(&store, "short", &turns(9)).await;
    assert_eq!((file::turns(&path), count(&path, "logs")), (31, 4));

    // The conversation changes; the run keeps its turns.
    let mut change = ThreadChange::default();
    (change.keep, change.turns) = (3, vec![turn(99)]);
    store
        .append(tenant("acme"), thread(), version, change)
        .await
        .unwrap();
    for (run, transcript) in [("run", turns(11)), ("other", other), ("short", turns(9))] {
        let record = store.get(key(run)).await.unwrap();
        assert_eq!(*record.state.transcript(), transcript, "{run}");
    }
    store.delete(tenant("acme"), thread()).await.unwrap();
    assert_eq!((file::turns(&path), count(&path, "logs")), (0, 0));
}

#[tokio::test]
async fn turns_that_are_written_together_share_rows() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let fence = begun(&store, "run", &turns(1_000)).await;
    let rows = count(&path, "turns");
    assert!((20..50).contains(&rows), "{rows}");
    // A change within a row keeps the turns before it, whatever the length.
    let mut stored = running_after(turns(1_000));
    for len in [999, 970, 969, 500, 31, 30, 29, 1, 0] {
        let mut transcript = turns(len);
        transcript.push(turn(10_000 + len));
        let state = running_after(transcript);
        let change = RunChange::since(&stored, &state);
        assert_eq!((change.keep, change.turns.len()), (len, 1));
        let saved = store.save(key("run"), fence, change, secs(30));
        saved.await.unwrap();
        assert_eq!(file::turns(&path), len as i64 + 1);
        assert_eq!(store.get(key("run")).await.unwrap().state, state);
        stored = state;
    }
}

#[tokio::test]
async fn the_turns_of_a_damaged_row_get_no_new_checksum() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let fence = begun(&store, "run", &turns(3)).await;
    let db = rusqlite::Connection::open(&path).unwrap();
    let damage = "UPDATE turns SET turn = replace(turn, '000000', '000009')";
    assert_eq!(db.execute(damage, []).unwrap(), 1);
    let state = running_after(turns(2));
    let change = RunChange::since(&running_after(turns(3)), &state);
    let saved = store.save(key("run"), fence, change, secs(30)).await;
    assert!(matches!(saved, Err(StoreError::Failed(_))), "{saved:?}");
}

#[tokio::test]
async fn the_first_write_of_a_run_does_not_grow_with_its_conversation() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let (mut version, mut len) = (0, 0);
    let mut found = Vec::new();
    for start in [10, 1_000, 10_000] {
        let mut change = ThreadChange::default();
        (change.keep, change.turns) = (len, (len..start).map(turn).collect());
        let append = store.append(tenant("acme"), ThreadId::new("thread"), version, change);
        (version, len) = (append.await.unwrap(), start);
        empty_log(&path);
        for n in 0..10 {
            begun(&store, &format!("{start} {n}"), &turns(start + 1)).await;
        }
        let bytes = logged(&path) / 10;
        println!("{bytes} bytes for the first write of a run after {start} turns");
        found.push(bytes);
    }
    assert_equal(&found);
}

#[tokio::test]
async fn a_changed_turn_is_found() {
    for change in [
        "UPDATE turns SET turn = replace(turn, '000001', '000009') WHERE n = 2",
        "UPDATE turns SET turn = replace(turn, char(10), '')",
        "UPDATE turns SET turn = CAST(x'ff' AS TEXT) || turn",
        "UPDATE turns SET n = 3",
        "DELETE FROM turns WHERE n = 2",
        "UPDATE runs SET len = 2 WHERE run = 'run'",
        "UPDATE runs SET log = NULL WHERE run = 'run'",
    ] {
        let (_dir, path) = file();
        let (store, clock) = open(&path);
        begun(&store, "run", &turns(3)).await;
        let record = store.get(key("run")).await.unwrap();
        let db = rusqlite::Connection::open(&path).unwrap();
        assert_eq!(db.execute(change, []).unwrap(), 1);
        let found = store.get(key("run")).await.unwrap_err();
        let text = std::error::Error::source(&found).unwrap().to_string();
        assert!(
            text.starts_with("run `run` of thread `thread` is corrupt"),
            "{change}: {text}"
        );
        // The last checksum still shows the turns of which a record was read before the damage.
        set(&clock, 60);
        let claim = store.claim(record.clone(), Vec::new(), secs(30)).await;
        match change.starts_with("UPDATE turns SET turn") {
            true => assert_eq!(claim.unwrap().state, record.state),
            false => assert!(claim.is_err(), "{change}"),
        }
    }
}
