//! New turns. A script appends few of them; more are staged in pieces before the script that writes the rest, so that
//! no other call waits for all of them.

use super::{
    db::{Db, Repeat, database},
    values::{Call, HEADER, ROOT, Reply, attempt, chain, digest, text},
};
use crate::{
    columns::{position, size},
    rules::{check_total, write_turn},
};
use concentric_core::{
    Turn,
    store::{StoreError, Tenant},
};
use tokio::task::yield_now;

/// The most turns, and the most bytes of them, that a script appends without staging.
const FEW: usize = 64;
const SMALL: usize = 32 << 10;

/// The most turns of a piece, and the size at which it gets no further turn.
const PIECE: usize = 500;
const PIECE_BYTES: usize = 128 << 10;

/// The times that turns are staged: again if the end of the turns before them has changed, or a lost connection made
/// it unknown which pieces the server has.
const STAGINGS: usize = 4;

/// Serialized turns.
pub(super) struct NewTurns {
    turns: Vec<String>,
    bytes: usize,
}

/// The last checksum of turns, and their bytes.
#[derive(Clone)]
pub(super) struct End {
    pub(super) chain: String,
    pub(super) bytes: usize,
}

/// The end of the turns that new ones follow.
pub(super) enum Before<'a> {
    Known(End),
    /// That which a call of the method `thread_kept` or `run_kept` returns.
    Kept(Call<'a>),
}

impl Before<'_> {
    /// That of no turns.
    pub(super) fn none() -> Self {
        Self::Known(End {
            chain: ROOT.to_owned(),
            bytes: 0,
        })
    }

    async fn find(&self, db: &Db) -> Result<End, StoreError> {
        let call = match self {
            Self::Known(end) => return Ok(end.clone()),
            Self::Kept(call) => call.clone(),
        };
        let reply = db.call(call, Repeat::Yes).await?;
        Ok(End {
            chain: text(reply.get(1)?)?.to_owned(),
            bytes: size(reply.int(2)?),
        })
    }
}

/// The new turns of one call, which the server has in part.
pub(super) enum Staged<'a> {
    /// The call has the turns.
    No(&'a [String]),
    Yes {
        id: String,
        count: usize,
        before: End,
        after: End,
    },
}

impl NewTurns {
    pub(super) async fn new(turns: &[Turn], max: usize) -> Result<Self, StoreError> {
        let mut new = Self {
            turns: Vec::with_capacity(turns.len()),
            bytes: 0,
        };
        let mut pace = Pace::default();
        for turn in turns {
            let turn = write_turn(turn, max)?;
            new.bytes = new.bytes.saturating_add(turn.len());
            check_total(new.bytes, max)?;
            pace.after(turn.len()).await;
            new.turns.push(turn);
        }
        Ok(new)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The checksum of the first `len` turns; `None` if there are fewer, or `len` is 0.
    pub(super) async fn chain_of(&self, len: usize) -> Option<String> {
        let first = self.turns.get(..len).filter(|first| !first.is_empty())?;
        let (mut last, mut pace) = (ROOT.to_owned(), Pace::default());
        for turn in first {
            last = chain(&last, turn.as_bytes());
            pace.after(turn.len()).await;
        }
        Some(last)
    }

    /// Makes a call with the turns after the first `skip`, which follow those that end `before` them.
    pub(super) async fn call<'a>(
        &'a self,
        db: &Db,
        tenant: &Tenant,
        skip: usize,
        before: Before<'a>,
        call: Call<'a>,
    ) -> Result<Reply, StoreError> {
        let turns = self.turns.get(skip..).unwrap_or_default();
        let bytes = turns.iter().map(String::len).sum::<usize>();
        let is_small = turns.len() <= FEW && bytes <= SMALL;
        for _ in 0..STAGINGS {
            let staged = match is_small {
                true => Some(Staged::No(turns)),
                false => stage(db, tenant, turns, before.find(db).await?).await?,
            };
            let Some(staged) = staged else {
                continue;
            };
            let reply = db.call(call.clone().turns(staged), Repeat::Yes).await?;
            if reply.code()? != "restage" {
                return Ok(reply);
            }
        }
        Err(database("the turns could not be staged").into())
    }
}

/// Stages turns after those that end with `before`; `None` if the server has removed them.
async fn stage<'a>(
    db: &Db,
    tenant: &Tenant,
    turns: &[String],
    before: End,
) -> Result<Option<Staged<'a>>, StoreError> {
    let id = attempt();
    db.call(Call::of(tenant, "stage").text(&id), Repeat::Yes)
        .await?;
    let (mut last, mut bytes) = (before.chain.clone(), before.bytes);
    let (mut piece, mut piece_bytes) = (Vec::new(), 0);
    for (n, turn) in turns.iter().enumerate() {
        last = chain(&last, turn.as_bytes());
        bytes = bytes.saturating_add(turn.len());
        let mut entry = Vec::with_capacity(HEADER + turn.len());
        entry.extend_from_slice(format!("{last}{bytes:016}").as_bytes());
        entry.extend_from_slice(turn.as_bytes());
        piece_bytes += entry.len();
        piece.push(entry);
        let is_full = piece.len() == PIECE || piece_bytes >= PIECE_BYTES;
        if is_full || n + 1 == turns.len() {
            let pushed = Call::push(tenant, &id, std::mem::take(&mut piece));
            if db.push(pushed).await? == 0 {
                return Ok(None);
            }
            piece_bytes = 0;
        }
    }
    let (chain, count) = (last, turns.len());
    let after = End { chain, bytes };
    Ok(Some(Staged::Yes {
        id,
        count,
        before,
        after,
    }))
}

impl<'a> Call<'a> {
    fn turns(self, turns: Staged<'a>) -> Self {
        match turns {
            Staged::No(turns) => {
                let mut call = self.int(position(turns.len())).text("-");
                for turn in turns {
                    call = call.owned(digest(turn.as_bytes())).text(turn);
                }
                call
            }
            Staged::Yes {
                id,
                count,
                before,
                after,
            } => self
                .int(position(count))
                .text("+")
                .owned(id)
                .owned(before.chain)
                .int(position(before.bytes))
                .owned(after.chain)
                .int(position(after.bytes)),
        }
    }
}

/// Lets other tasks run after some bytes were serialized or summed.
#[derive(Default)]
struct Pace(usize);

impl Pace {
    async fn after(&mut self, bytes: usize) {
        self.0 += bytes;
        if self.0 >= PIECE_BYTES {
            self.0 = 0;
            yield_now().await;
        }
    }
}
