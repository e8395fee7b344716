//! Processes that write one conversation.

use super::*;
use concentric_core::{
    Turn,
    store::{StoredThread, ThreadChange, ThreadStore},
};

fn thread() -> ThreadId {
    ThreadId::new("thread")
}

fn add(keep: usize, text: String) -> ThreadChange {
    let mut change = ThreadChange::default();
    change.keep = keep;
    change.turns = vec![Turn::user(text)];
    change
}

fn texts(store: &SqliteStore) -> (Vec<String>, u64) {
    texts_of(block(store.load(tenant("acme"), thread())).unwrap())
}

fn texts_of(stored: Option<StoredThread>) -> (Vec<String>, u64) {
    let stored = stored.unwrap_or_default();
    let turns = stored.history.iter();
    let texts = turns.map(|turn| turn.as_message().text());
    (texts.collect(), stored.version)
}

/// Appends one turn for each line on stdin, based on the version in the line.
#[test]
#[ignore = "a child process of the tests below"]
fn appender() {
    let Some((store, name)) = part() else { return };
    append_lines(&store, &name, block);
}

fn append_lines(
    store: &dyn ThreadStore,
    name: &str,
    block: impl Fn(StoreFuture<u64>) -> Result<u64, StoreError>,
) {
    report("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (version, keep) = line.split_once(' ').unwrap();
        let change = add(keep.parse().unwrap(), format!("{name} {line}"));
        let append = store.append(tenant("acme"), thread(), version.parse().unwrap(), change);
        match block(append) {
            Ok(version) => report(version),
            Err(StoreError::Moved { .. }) => report("moved"),
            Err(error) => report(error.to_string()),
        }
    }
}

/// Appends turns until it is killed, and reports each acknowledged one.
#[test]
#[ignore = "a child process of the tests below"]
fn talker() {
    let Some((store, name)) = part() else { return };
    let (turns, mut version) = texts(&store);
    for n in turns.len().. {
        let append = store.append(
            tenant("acme"),
            thread(),
            version,
            add(n, format!("{name} {n}")),
        );
        version = block(append).unwrap();
        report(n);
    }
}

// The number of races is `CONCENTRIC_RACES`, ten times.
#[test]
fn of_two_processes_one_wins_each_append() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let store = SqliteStore::open(&db).unwrap();
    race(
        |name| Actor::start("threads::appender", &db, name),
        || texts(&store),
    );
}

#[cfg(feature = "postgres")]
mod over_postgres {
    use super::*;
    use crate::common::postgres::migrated;
    use concentric_store::PostgresStore;

    const SCHEMA: &str = "CONCENTRIC_RACE_SCHEMA";

    #[test]
    #[ignore = "a child process of the test below"]
    fn appender() {
        let Ok(schema) = std::env::var(SCHEMA) else {
            return;
        };
        let (url, name) = (std::env::var(DB).unwrap(), std::env::var(RUN).unwrap());
        let runtime = runtime();
        let store = PostgresStore::open_with(&url, Options::new().schema(schema));
        let store = runtime.block_on(store).unwrap();
        append_lines(&store, &name, |append| runtime.block_on(append));
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap()
    }

    #[test]
    fn of_two_processes_one_wins_each_append() {
        let runtime = runtime();
        let Some((url, schema)) = runtime.block_on(migrated()) else {
            return;
        };
        let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
        let store = runtime.block_on(store).unwrap();
        race(
            |name| {
                let appender = "threads::over_postgres::appender";
                Actor::start_with(appender, Path::new(&url), name, (SCHEMA, &schema))
            },
            || {
                let load = store.load(tenant("acme"), thread());
                texts_of(runtime.block_on(load).unwrap())
            },
        );
    }
}

fn race(start: impl Fn(&str) -> Actor, texts: impl FnOnce() -> (Vec<String>, u64)) {
    let mut racers = ["one", "two"].map(start);
    for racer in &mut racers {
        assert_eq!(racer.next(), r#""ready""#);
    }
    let (mut version, mut wins) = (0, [0, 0]);
    let races = races() * 10;
    for race in 0..races {
        let line = format!("{version} {race}\n");
        for at in [race % 2, 1 - race % 2] {
            let stdin = racers[at].child.stdin.as_mut().unwrap();
            stdin.write_all(line.as_bytes()).unwrap();
        }
        let results = [0, 1].map(|at| racers[at].next());
        let won = results.each_ref().map(|result| result != r#""moved""#);
        assert_ne!(won[0], won[1], "race {race}: {results:?}");
        let winner = usize::from(won[1]);
        wins[winner] += 1;
        version = results[winner].parse().unwrap();
    }
    racers.into_iter().for_each(Actor::end);
    let (texts, found) = texts();
    assert_eq!((texts.len(), found), (races, version));
    println!(
        "{races} races of 2 processes, {wins:?} won, {} turns",
        texts.len()
    );
}

#[test]
fn a_killed_process_leaves_a_loadable_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let mut acknowledged = 0;
    for kill in 0..10 {
        let mut talker = Actor::start("threads::talker", &db, &format!("killed{kill}"));
        for _ in 0..=kill * 3 {
            acknowledged = talker.next().parse::<usize>().unwrap() + 1;
        }
        talker.signal("-KILL");
        drop(talker);
        let store = SqliteStore::open(&db).unwrap();
        let (texts, _) = texts(&store);
        // The last append may have been written without its report.
        assert!(
            texts.len() >= acknowledged,
            "{} of {acknowledged}",
            texts.len()
        );
        for (n, text) in texts.iter().enumerate() {
            assert!(text.ends_with(&format!(" {n}")), "{text}");
        }
    }
    println!("10 kills, {acknowledged} acknowledged turns, 0 lost");
}
