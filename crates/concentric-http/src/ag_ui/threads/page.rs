//! Pages of threads, and of the turns of a thread.

use std::{collections::HashSet, time::SystemTime};

use concentric_core::{
    CallId, Str, ThreadId, Turn,
    store::{Tenant, ThreadStore, ThreadSummary},
};
use serde_json::{Value, json};

use super::{
    super::stream::{WireIds, push_turn},
    query::Query,
    respond::{failed, unknown_thread},
};
use crate::{refused::Refused, run::Metadata};

/// The maximum number of threads in a page, and the default.
const THREADS: (usize, usize) = (100, 50);

/// The maximum number of turns in a page, and the default.
const TURNS: (usize, usize) = (500, 50);

/// The size of a page in bytes above which no further turns are added.
const BYTES: usize = 4 << 20;

/// The page of the threads of `tenant` that `query` asks for.
pub(super) async fn threads(
    store: &dyn ThreadStore,
    tenant: Tenant,
    query: &Query<'_>,
) -> Result<Value, Refused> {
    let limit = query.limit(THREADS.1, THREADS.0)?;
    let before = query.number("before")?;
    let found = store.list_threads(tenant, before, limit + 1).await;
    let mut found = found.map_err(|error| failed(&error))?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let mut page = Metadata::new();
    let threads: Vec<Value> = found.iter().map(summary).collect();
    page.insert("threads".to_owned(), threads.into());
    if let Some(last) = found.last().filter(|_| has_more) {
        // A text: numbers of JavaScript are exact up to 2^53 only.
        page.insert("next".to_owned(), last.version.to_string().into());
    }
    Ok(page.into())
}

fn summary(thread: &ThreadSummary) -> Value {
    let at = thread.at.duration_since(SystemTime::UNIX_EPOCH);
    let at = at.unwrap_or_default().as_millis();
    json!({"threadId": thread.thread.as_str(), "turns": thread.turns, "updatedAt": at})
}

/// The page of the turns of a thread that `query` asks for, as JSON.
pub(super) async fn turns(
    store: &dyn ThreadStore,
    tenant: Tenant,
    thread: &str,
    query: &Query<'_>,
) -> Result<Vec<u8>, Refused> {
    let wanted = Wanted::new(query)?;
    let read = async |(start, limit)| {
        let found = store.turns(tenant.clone(), ThreadId::new(thread), start, limit);
        let found = found.await.map_err(|error| failed(&error))?;
        found.ok_or_else(unknown_thread)
    };
    let mut range = wanted.range();
    let mut found = read(range).await?;
    if wanted.before.is_some_and(|before| before > found.0.turns) {
        // The newest turns, as far as they are before that position if more are added in between.
        range = wanted.range_before(found.0.turns);
        found = read(range).await?;
    }
    let (summary, turns) = found;
    let newest = summary.turns.saturating_sub(turns.len());
    let start = range.0.map_or(newest, |start| start.min(summary.turns));
    Ok(write(&summary, start, &turns, wanted.after.is_some()))
}

/// The wanted turns of a thread.
struct Wanted {
    /// The position of the first one, for the oldest turns.
    after: Option<usize>,
    /// The position after the last one, for the newest turns.
    before: Option<usize>,
    limit: usize,
}

impl Wanted {
    fn new(query: &Query<'_>) -> Result<Self, Refused> {
        let wanted = Self {
            after: query.number("after")?,
            before: query.number("before")?,
            limit: query.limit(TURNS.1, TURNS.0)?,
        };
        if wanted.after.is_some() && wanted.before.is_some() {
            return Err(Refused::field(
                "before",
                "not allowed together with `after`",
            ));
        }
        Ok(wanted)
    }

    /// The position of the first wanted turn, or `None` for the newest ones, and the number of turns.
    fn range(&self) -> (Option<usize>, usize) {
        match (self.after, self.before) {
            (Some(after), _) => (Some(after), self.limit),
            (None, Some(before)) => self.range_before(before),
            (None, None) => (None, self.limit),
        }
    }

    fn range_before(&self, before: usize) -> (Option<usize>, usize) {
        let limit = self.limit.min(before);
        (Some(before - limit), limit)
    }
}

/// Writes the page of the turns from position `start` on. It has fewer of them, but at least one, if it would be too
/// large; the last ones unless `is_oldest`.
fn write(thread: &ThreadSummary, start: usize, turns: &[Turn], is_oldest: bool) -> Vec<u8> {
    let end = start + turns.len();
    let mut turns: Vec<(usize, &Turn)> = (start..).zip(turns).collect();
    // From the end at which the page must have turns.
    if !is_oldest {
        turns.reverse();
    }
    let mut ids = Ids::default();
    let mut written: Vec<Vec<u8>> = Vec::new();
    let mut size = 0;
    for (position, turn) in turns {
        if size > BYTES {
            break;
        }
        ids.begin(position);
        let mut messages = Vec::new();
        push_turn(turn, &mut ids, &mut messages);
        messages.reverse();
        // A list of values always serializes.
        let list = serde_json::to_vec(&messages).unwrap_or_default();
        size += list.len();
        written.push(list);
    }
    let count = written.len();
    let (start, end) = match is_oldest {
        true => (start, start + count),
        false => (end - count, end),
    };
    if !is_oldest {
        written.reverse();
    }
    let head = json!({
        "threadId": thread.thread.as_str(), "turns": thread.turns, "start": start, "end": end,
    });
    let mut page = head.to_string().into_bytes();
    // The messages are inserted before the closing brace.
    page.pop();
    page.extend_from_slice(br#","messages":["#);
    let lists = written
        .iter()
        .filter_map(|list| list.get(1..list.len() - 1));
    for (n, list) in lists.enumerate() {
        if n > 0 {
            page.push(b',');
        }
        page.extend_from_slice(list);
    }
    page.extend_from_slice(b"]}");
    page
}

/// The ids of a stored thread: those that are stored, and otherwise ids from the position of a turn,
/// which stay the same.
#[derive(Default)]
struct Ids {
    position: usize,
    unnamed: usize,
    messages: HashSet<String>,
    calls: HashSet<Str>,
}

impl Ids {
    const fn begin(&mut self, position: usize) {
        self.position = position;
        self.unnamed = 0;
    }
}

impl WireIds for Ids {
    fn message(&mut self, known: Option<&str>) -> String {
        if let Some(known) = known
            && self.messages.insert(known.to_owned())
        {
            return known.to_owned();
        }
        self.unnamed += 1;
        format!("turn_{}_{}", self.position, self.unnamed)
    }

    fn call(&mut self, id: &CallId) -> Str {
        let id = Str::from(id.as_str());
        match self.calls.insert(id.clone()) {
            true => id,
            // Models repeat their ids.
            false => format!("{id}~{}", self.position).into(),
        }
    }
}
