//! Finds a run that is to go on, and claims it.

use super::{
    claim::Claim,
    run::{Drive, Kept, Origin},
};
use concentric_core::{
    Error, ErrorKind, InterruptId, OpenRound, Phase, Reply, ReplyError, Resume, Suspended,
    interrupt::CLIENT_TOOL,
    machine::MachineState,
    service::BoxFuture,
    store::{RunKey, RunRecord, RunStatus, RunStore, StoreError},
};
use std::{collections::HashSet, sync::Arc};

/// How many questions one request may reply to.
const MOST: usize = 256;

/// Has a run taken up that was found to be abandoned, as an extension of its context.
#[derive(Clone, Debug)]
pub(super) struct Abandoned {
    pub(super) key: RunKey,
    pub(super) version: u64,
}

/// Where and how to look.
pub(super) struct Lookup<St: ?Sized> {
    kept: Arc<Kept<St>>,
    abandoned: Option<Abandoned>,
}

impl<St> Lookup<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(drive: &Drive<St>, abandoned: Option<Abandoned>) -> Self {
        Self {
            kept: Arc::clone(&drive.kept),
            abandoned,
        }
    }
}

/// What was found.
pub(super) enum Found {
    /// The run, which is claimed.
    Run(Box<RunRecord>, Origin),
    /// The store does not have it.
    None(Suspended, Vec<Reply>),
    /// There is none that waits for what the history says.
    Nothing,
}

/// What is to go on; given back unless it does.
struct Loan {
    resume: Resume,
    taken: Option<(Suspended, Vec<Reply>)>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some((suspended, replies)) = self.taken.take() {
            self.resume.give_back(suspended, replies);
        }
    }
}

pub(super) fn take_up<St>(
    lookup: Lookup<St>,
    resume: Resume,
    taken: (Suspended, Vec<Reply>),
) -> BoxFuture<Found>
where
    St: RunStore + ?Sized,
{
    let mut loan = Loan {
        resume,
        taken: Some(taken),
    };
    Box::pin(async move {
        let found = match &loan.taken {
            Some((suspended, replies)) => find(&lookup, suspended, replies).await,
            None => Ok(None),
        };
        match found.map_err(|error| error.with_phase(Phase::Run))? {
            Some((record, origin)) => {
                // It is the store's now.
                drop(loan.taken.take());
                Ok(Found::Run(Box::new(record), origin))
            }
            None => match loan.taken.take() {
                Some((suspended, replies)) => Ok(Found::None(suspended, replies)),
                None => Err(StoreError::NotFound.into()),
            },
        }
    })
}

/// Begins a run, unless one of its id is live; or finds the one that has called the client's tools,
/// if the history ends with their `results`.
pub(super) fn begin<St>(lookup: Lookup<St>, results: Vec<Reply>) -> BoxFuture<Found>
where
    St: RunStore + ?Sized,
{
    Box::pin(async move {
        let kept = &lookup.kept;
        let found = match check_live(kept).await {
            Err(error) => Err(error),
            Ok(()) if results.is_empty() => Ok(None),
            Ok(()) => waiting_for(kept, results).await,
        };
        match found.map_err(|error| error.with_phase(Phase::Run))? {
            Some((record, origin)) => Ok(Found::Run(Box::new(record), origin)),
            None => Ok(Found::Nothing),
        }
    })
}

/// Fails if a run of this id is live, before a model is called.
async fn check_live<St>(kept: &Kept<St>) -> Result<(), Error>
where
    St: RunStore + ?Sized,
{
    let RunKey { tenant, thread, .. } = kept.key().clone();
    let client_id = kept.client_id().clone();
    match kept.store().is_live(tenant, thread, client_id).await {
        Ok(false) => Ok(()),
        Ok(true) => Err(StoreError::Live.into()),
        Err(error) => {
            // It may never call a tool, and the store looks again before it does.
            tracing::warn!(%error, "it is not known whether a run is live, and another one begins");
            Ok(())
        }
    }
}

/// The questions that are replied to.
///
/// # Errors
///
/// They are too many to be looked for.
fn questions(replies: &[Reply]) -> Result<Vec<InterruptId>, Error> {
    if replies.len() > MOST {
        let too_many = format!(
            "a request has {} replies, and may have {MOST}",
            replies.len()
        );
        let error = Error::new(ErrorKind::InvalidRequest, too_many);
        return Err(error.with_code("too_many_replies"));
    }
    Ok(replies.iter().map(|it| it.interrupt_id.clone()).collect())
}

async fn waiting_for<St>(
    kept: &Arc<Kept<St>>,
    results: Vec<Reply>,
) -> Result<Option<(RunRecord, Origin)>, Error>
where
    St: RunStore + ?Sized,
{
    let (tenant, thread) = (kept.key().tenant.clone(), kept.key().thread.clone());
    let questions = questions(&results)?;
    let record = match kept.store().asking(tenant, thread, questions).await {
        Ok(record) => record,
        Err(StoreError::NotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Its answer is wanted anew, or was not heard to its end.
    if record.status == RunStatus::Ended {
        return Ok(None);
    }
    let results = awaited(&record.state, results);
    claim(kept, record, results).await.map(Some)
}

/// Those of `results` that a run in `state` waits for.
fn awaited(state: &MachineState, mut results: Vec<Reply>) -> Vec<Reply> {
    let waiting = state.interrupts().into_iter();
    let waiting = waiting.filter(|asked| asked.reason == CLIENT_TOOL);
    let waiting: HashSet<&InterruptId> = waiting.map(|asked| &asked.id).collect();
    results.retain(|reply| waiting.contains(&reply.interrupt_id));
    results
}

async fn find<St>(
    lookup: &Lookup<St>,
    suspended: &Suspended,
    replies: &[Reply],
) -> Result<Option<(RunRecord, Origin)>, Error>
where
    St: RunStore + ?Sized,
{
    let kept = &lookup.kept;
    let store = kept.store();
    if let Some(Abandoned { key, version }) = lookup.abandoned.clone() {
        let claim = store.claim(key, version, Vec::new(), kept.now(), kept.until());
        return Ok(Some(Claim::new(kept, claim, true).await?));
    }
    let (tenant, thread) = (kept.key().tenant.clone(), kept.key().thread.clone());
    let questions = questions(replies)?;
    // Nobody's conversation is not for anybody to go on with.
    if questions.is_empty() && thread.as_str().is_empty() {
        return match suspended {
            Suspended::Elsewhere => Err(StoreError::NotFound.into()),
            _ => Ok(None),
        };
    }
    let found = match questions.is_empty() {
        true => only(kept, suspended).await,
        false => match store.asking(tenant, thread, questions).await {
            Err(StoreError::NotFound) => Ok(None),
            other => other.map(Some).map_err(Error::from),
        },
    };
    let Some(record) = found? else {
        return match suspended {
            Suspended::Elsewhere => Err(StoreError::NotFound.into()),
            _ => Ok(None),
        };
    };
    let mut all = replies.to_vec();
    if let Suspended::Claimed(open) = suspended {
        // What the client's tools did stands in the history.
        let replied: HashSet<_> = replies.iter().map(|reply| &reply.interrupt_id).collect();
        let mut results = open.client_replies();
        results.retain(|result| !replied.contains(&result.interrupt_id));
        all.extend(awaited(&record.state, results));
    }
    claim(kept, record, all).await.map(Some)
}

/// Goes on with the run of `record`, unless another does.
async fn claim<St>(
    kept: &Arc<Kept<St>>,
    record: RunRecord,
    replies: Vec<Reply>,
) -> Result<(RunRecord, Origin), Error>
where
    St: RunStore + ?Sized,
{
    let left = match record.status {
        RunStatus::Ended => return Err(StoreError::Ended.into()),
        RunStatus::Running if record.lease_until > kept.now() => {
            return Err(StoreError::Taken.into());
        }
        RunStatus::Running => true,
        RunStatus::Suspended => false,
    };
    // Those that were accepted before its process died are the ones that count: they are kept with
    // the run, or in its state by now.
    let asked: HashSet<&InterruptId> = record.asked.iter().collect();
    let waiting = record.state.interrupts().into_iter();
    let waiting: HashSet<&InterruptId> = waiting.map(|asked| &asked.id).collect();
    let mut ids = replies.iter().map(|reply| &reply.interrupt_id);
    let are_in_state = left && ids.all(|id| asked.contains(id) && !waiting.contains(id));
    // What was accepted is not answered otherwise now.
    let replies = match are_in_state {
        true if replies
            .iter()
            .any(|it| contradicts(it, record.state.replies())) =>
        {
            return Err(StoreError::Taken.into());
        }
        true => Vec::new(),
        false => replies,
    };
    let accepted = &record.replies;
    if replies.iter().any(|it| contradicts(it, accepted)) {
        return Err(StoreError::Taken.into());
    }
    // The record proves that the questions were asked; an approval token is not stored.
    let replies: Vec<Reply> = replies
        .into_iter()
        .filter(|reply| {
            !accepted
                .iter()
                .any(|it| it.interrupt_id == reply.interrupt_id)
        })
        .map(|mut reply| {
            reply.token = None;
            reply
        })
        .collect();
    let checked = record.state.check_replies(&replies, kept.now());
    checked.map_err(|error| refuse(error, &record))?;
    let RunRecord { key, version, .. } = record;
    let claim = kept
        .store()
        .claim(key, version, replies, kept.now(), kept.until());
    Ok(Claim::new(kept, claim, left).await?)
}

/// Whether the same question was answered differently. The replies of closed rounds are not kept.
fn contradicts<'a>(reply: &Reply, taken: impl IntoIterator<Item = &'a Reply>) -> bool {
    taken.into_iter().any(|it| {
        it.interrupt_id == reply.interrupt_id
            && (it.status, &it.payload) != (reply.status, &reply.payload)
    })
}

/// The run of a conversation that is meant where nothing is replied to. Its state is the only one that
/// is loaded.
async fn only<St>(kept: &Kept<St>, suspended: &Suspended) -> Result<Option<RunRecord>, Error>
where
    St: RunStore + ?Sized,
{
    let RunKey { tenant, thread, .. } = kept.key().clone();
    let message = match suspended {
        Suspended::Claimed(open) => match open.message().id.clone() {
            None => return Ok(None),
            message => message,
        },
        _ => None,
    };
    // Those that nobody drives come first, so two tell whether there are several.
    let runs = kept.store().of_thread(tenant, thread, message, 2).await?;
    let now = kept.now();
    if runs.len() > 1 && runs.iter().all(|run| !run.is_driven(now)) {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            "several runs of this conversation wait, and no reply says which one to resume",
        )
        .with_code("ambiguous_resume"));
    }
    let Some(run) = runs.into_iter().next() else {
        return Ok(None);
    };
    let record = match kept.store().get(run.key).await {
        Err(StoreError::NotFound) => return Ok(None),
        record => record?,
    };
    // It may have gone on meanwhile.
    let is_meant = match suspended {
        Suspended::Claimed(open) => is_same(&record.state, open),
        _ => true,
    };
    Ok(is_meant.then_some(record))
}

/// Whether the round that `state` waits in is of the message that `open` is of.
fn is_same(state: &MachineState, open: &OpenRound) -> bool {
    let round = state.open_round();
    let id = round.as_ref().and_then(|round| round.message().id.as_ref());
    id.is_some() && id == open.message().id.as_ref()
}

fn refuse(error: ReplyError, record: &RunRecord) -> Error {
    match &error {
        // It was asked, and does not wait any more.
        ReplyError::Unknown(id) if record.asked.contains(id) => StoreError::Taken.into(),
        _ => Error::new(ErrorKind::InvalidRequest, error.to_string())
            .with_code(error.code())
            .with_source(error),
    }
}
