//! Finds and claims the stored run that a request resumes.

use super::{
    claim::Claim,
    recover::Abandoned,
    run::{Drive, Kept, Origin},
};
use concentric_core::{
    Error, ErrorKind, InterruptId, Message, OpenRound, Phase, Reply, ReplyError, Resume,
    ResumePoint, Role, Transcript, Turn,
    interrupt::CLIENT_TOOL,
    machine::RunState,
    service::BoxFuture,
    store::{OpenInterrupts, RunChange, RunKey, RunRecord, RunStatus, RunStore, StoreError},
    transcript::Round,
};
use std::{collections::HashSet, sync::Arc};

/// The maximum number of replies per request.
const MOST: usize = 256;

/// The store and the criteria of a lookup.
pub(super) struct Lookup<St>
where
    St: RunStore + ?Sized,
{
    kept: Arc<Kept<St>>,
    abandoned: Option<Abandoned<St>>,
    /// The only run that the replies are for.
    run: Option<RunKey>,
}

impl<St> Lookup<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(
        drive: &Drive<St>,
        abandoned: Option<Abandoned<St>>,
        run: Option<RunKey>,
    ) -> Self {
        Self {
            kept: Arc::clone(&drive.kept),
            abandoned,
            run,
        }
    }
}

/// The result of a lookup.
pub(super) enum Found {
    /// A claimed run.
    Run(Box<RunRecord>, Origin),
    /// The store does not contain the run.
    None(ResumePoint, Vec<Reply>),
    /// A run that waits in this state and is not claimed.
    Waiting(Box<RunState>),
    /// No run waits for the results in the history.
    Nothing,
}

/// The taken replies of a request, which are returned to it on drop unless they are used.
struct Loan {
    resume: Resume,
    taken: Option<(ResumePoint, Vec<Reply>)>,
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
    taken: (ResumePoint, Vec<Reply>),
) -> BoxFuture<Found>
where
    St: RunStore + ?Sized,
{
    let mut loan = Loan {
        resume,
        taken: Some(taken),
    };
    Box::pin(async move {
        let messages = loan.resume.messages().to_vec();
        let found = match &loan.taken {
            Some((suspended, replies)) => find(&lookup, suspended, replies, messages).await,
            None => Ok(None),
        };
        match found.map_err(|error| error.with_phase(Phase::Run))? {
            Some((record, origin)) => {
                // The store has accepted the replies.
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

/// Decides how a request without a `resume` begins: with a new run, unless a run with its id is
/// live; or with the run that waits for the client tool results at the end of its `transcript`.
/// `open` applies to the open interrupts of its conversation.
pub(super) fn begin<St>(
    lookup: Lookup<St>,
    transcript: Transcript,
    open: Option<OpenInterrupts>,
) -> BoxFuture<Found>
where
    St: RunStore + ?Sized,
{
    Box::pin(async move {
        let kept = &lookup.kept;
        // Requests without a conversation have no interrupts in common.
        let open = open.filter(|_| !kept.key().thread.as_str().is_empty());
        let round = transcript.last().and_then(Turn::as_round);
        let results = round.map(Round::client_replies).unwrap_or_default();
        let asked = match open {
            Some(OpenInterrupts::Show) if results.is_empty() => show(kept, &transcript).await,
            _ => Ok(None),
        };
        let found = match asked {
            Ok(None) => begin_anew(kept, &transcript, results, open).await,
            asked => asked,
        };
        let found = found.map_err(|error| error.with_phase(Phase::Run))?;
        Ok(found.unwrap_or(Found::Nothing))
    })
}

/// Finds the run that waits for `results`, if there are any. Otherwise withdraws the open
/// interrupts, if `open` is set and the transcript ends with a new user message.
async fn begin_anew<St>(
    kept: &Arc<Kept<St>>,
    transcript: &Transcript,
    results: Vec<Reply>,
    open: Option<OpenInterrupts>,
) -> Result<Option<Found>, Error>
where
    St: RunStore + ?Sized,
{
    check_live(kept).await?;
    if !results.is_empty() {
        let found = waiting_for(kept, results).await?;
        return Ok(found.map(|(record, origin)| Found::Run(Box::new(record), origin)));
    }
    if open.is_some() && is_new(transcript) {
        withdraw(kept).await?;
    }
    Ok(None)
}

/// Finds the run whose interrupts the client of `transcript` may have missed: the newest waiting
/// one, or else the one whose lease ends last. No other state is loaded, however many runs are
/// open.
///
/// # Errors
///
/// The run is driven, or may be the one that is driven; or there is none, and `transcript` ends
/// with an answer.
async fn show<St>(kept: &Arc<Kept<St>>, transcript: &Transcript) -> Result<Option<Found>, Error>
where
    St: RunStore + ?Sized,
{
    let RunKey { tenant, thread, .. } = kept.key().clone();
    let store = kept.store();
    let mut runs = store
        .list_by_thread(tenant, thread, None, usize::MAX)
        .await?;
    // Waiting runs come first, the oldest before the newer ones.
    let waiting = runs.partition_point(|run| run.status == RunStatus::Suspended);
    let waiting = if waiting == 0 { runs.len() } else { waiting };
    let meant = waiting.checked_sub(1).map(|last| runs.remove(last));
    let record = match meant {
        Some(run) => match store.get(run.key).await {
            // It was purged in the meantime.
            Err(StoreError::NotFound) => None,
            record => Some(record?),
        },
        None => None,
    };
    let mut messages = transcript.rev().map(Turn::as_message);
    let newest = messages.find(|message| message.role == Role::User);
    if let Some(record) = record
        && newest.is_none_or(|newest| has(record.state.transcript(), newest))
    {
        // A claim would delay a reply.
        if record.status == RunStatus::Suspended {
            return Ok(Some(Found::Waiting(Box::new(record.state))));
        }
        let (record, origin) = claim(kept, record, Vec::new(), Vec::new()).await?;
        return Ok(Some(Found::Run(Box::new(record), origin)));
    }
    // The message may belong to a driven run, which must not begin twice.
    if runs.iter().any(|run| run.status == RunStatus::Running) {
        return Err(StoreError::Taken.into());
    }
    match is_new(transcript)
        || transcript
            .last()
            .is_some_and(|turn| turn.as_round().is_some())
    {
        true => Ok(None),
        false => Err(StoreError::NotFound.into()),
    }
}

/// Whether `message` is in `transcript`, by its id.
fn has(transcript: &Transcript, message: &Message) -> bool {
    message.id.is_some()
        && transcript
            .rev()
            .any(|turn| turn.as_message().id == message.id)
}

/// Whether the transcript ends with a user message, apart from system messages.
fn is_new(transcript: &Transcript) -> bool {
    let mut roles = transcript.rev().map(|turn| turn.as_message().role);
    roles.find(|role| *role != Role::System) == Some(Role::User)
}

/// Ends the waiting runs of the conversation.
async fn withdraw<St>(kept: &Kept<St>) -> Result<(), Error>
where
    St: RunStore + ?Sized,
{
    let RunKey { tenant, thread, .. } = kept.key().clone();
    let store = kept.store();
    // Waiting runs come first. Mostly there are none, and nothing is written.
    let open = store
        .list_by_thread(tenant.clone(), thread.clone(), None, 1)
        .await?;
    if open.iter().any(|run| run.status == RunStatus::Suspended) {
        store.withdraw(tenant, thread).await?;
    }
    Ok(())
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
            // The new run may never call a tool, and the store checks again before it does.
            tracing::warn!(%error, "could not check whether a run with this id is live; a new run starts");
            Ok(())
        }
    }
}

/// Returns the ids of the interrupts that `replies` answer.
///
/// # Errors
///
/// There are more than [`MOST`] replies.
fn questions(replies: &[Reply]) -> Result<Vec<InterruptId>, Error> {
    if replies.len() > MOST {
        let too_many = format!(
            "a request has {} replies; the maximum is {MOST}",
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
    let record = match kept
        .store()
        .find_by_interrupt(tenant, thread, questions)
        .await
    {
        Ok(record) => record,
        Err(StoreError::NotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // A new answer is requested, or the client missed the last one.
    if record.status == RunStatus::Ended {
        return Ok(None);
    }
    let results = awaited(&record.state, results);
    claim(kept, record, results, Vec::new()).await.map(Some)
}

/// Returns those of `results` that a run in `state` waits for.
fn awaited(state: &RunState, mut results: Vec<Reply>) -> Vec<Reply> {
    let waiting = state.interrupts().into_iter();
    let waiting = waiting.filter(|asked| asked.reason == CLIENT_TOOL);
    let waiting: HashSet<&InterruptId> = waiting.map(|asked| &asked.id).collect();
    results.retain(|reply| waiting.contains(&reply.interrupt_id));
    results
}

async fn find<St>(
    lookup: &Lookup<St>,
    suspended: &ResumePoint,
    replies: &[Reply],
    messages: Vec<Message>,
) -> Result<Option<(RunRecord, Origin)>, Error>
where
    St: RunStore + ?Sized,
{
    let kept = &lookup.kept;
    let store = kept.store();
    if let Some(abandoned) = &lookup.abandoned {
        let (record, since) = abandoned.take().ok_or(StoreError::Taken)?;
        kept.set_leased(since);
        return Ok(Some((record, Origin::Left)));
    }
    let (tenant, thread) = (kept.key().tenant.clone(), kept.key().thread.clone());
    let questions = questions(replies)?;
    // Without a conversation, only a reply identifies a run.
    if questions.is_empty() && thread.as_str().is_empty() {
        return match suspended {
            ResumePoint::InStore => Err(StoreError::NotFound.into()),
            _ => Ok(None),
        };
    }
    let found = match questions.is_empty() {
        true => only(kept, suspended).await,
        false => match store.find_by_interrupt(tenant, thread, questions).await {
            Err(StoreError::NotFound) => Ok(None),
            other => other.map(Some).map_err(Error::from),
        },
    };
    let Some(record) = found? else {
        return match suspended {
            ResumePoint::InStore => Err(StoreError::NotFound.into()),
            _ => Ok(None),
        };
    };
    if lookup.run.as_ref().is_some_and(|run| *run != record.key) {
        return Err(StoreError::Taken.into());
    }
    let mut all = replies.to_vec();
    if let ResumePoint::UnverifiedHistory(open) = suspended {
        // The history contains the results of the client's tools.
        let replied: HashSet<_> = replies.iter().map(|reply| &reply.interrupt_id).collect();
        let mut results = open.client_replies();
        results.retain(|result| !replied.contains(&result.interrupt_id));
        all.extend(awaited(&record.state, results));
    }
    claim(kept, record, all, messages).await.map(Some)
}

/// Claims the run of `record`, unless it is driven, and adds `messages` to it.
async fn claim<St>(
    kept: &Arc<Kept<St>>,
    mut record: RunRecord,
    replies: Vec<Reply>,
    messages: Vec<Message>,
) -> Result<(RunRecord, Origin), Error>
where
    St: RunStore + ?Sized,
{
    let left = match record.status {
        RunStatus::Ended => return Err(StoreError::Ended.into()),
        RunStatus::Running => return Err(StoreError::Taken.into()),
        RunStatus::Quarantined => return Err(StoreError::Quarantined.into()),
        RunStatus::Abandoned => true,
        RunStatus::Suspended => false,
    };
    // Replies that were accepted before the process died take precedence. They are stored with the
    // run, or in its state.
    let asked: HashSet<&InterruptId> = record.asked.iter().collect();
    let waiting = record.state.interrupts().into_iter();
    let waiting: HashSet<&InterruptId> = waiting.map(|asked| &asked.id).collect();
    // A client that sends its whole conversation repeats those that have taken effect.
    let is_settled =
        |it: &Reply| asked.contains(&it.interrupt_id) && !waiting.contains(&it.interrupt_id);
    let (settled, open): (Vec<_>, Vec<_>) = replies.into_iter().partition(is_settled);
    let replies = match left || !open.is_empty() {
        // An accepted reply must not be contradicted.
        true if settled
            .iter()
            .any(|it| contradicts(it, record.state.replies())) =>
        {
            return Err(StoreError::Taken.into());
        }
        true => open,
        false => settled,
    };
    let accepted = &record.replies;
    if replies.iter().any(|it| contradicts(it, accepted)) {
        return Err(StoreError::Taken.into());
    }
    // The record proves that the interrupts were emitted; an approval token is not stored.
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
    let store = kept.store();
    if !messages.is_empty() {
        let mut state = record.state.clone();
        state.push_messages(messages)?;
        if state != record.state {
            // Before the replies are accepted, so that the messages are as durable as the replies.
            // Another attempt finds them and adds nothing.
            let change = RunChange::since(&record.state, &state);
            let amended = store.amend(record.key.clone(), record.version, change);
            record.version = amended.await?;
            record.state = state;
        }
    }
    let claim = store.claim(record, replies, kept.lease());
    Ok(Claim::new(kept, claim, left).await?)
}

/// Returns whether `taken` contains a different reply to the same interrupt. The replies of closed
/// rounds are not stored.
fn contradicts<'a>(reply: &Reply, taken: impl IntoIterator<Item = &'a Reply>) -> bool {
    taken.into_iter().any(|it| {
        it.interrupt_id == reply.interrupt_id
            && (it.status, &it.payload) != (reply.status, &reply.payload)
    })
}

/// Returns the run of the conversation that a request without replies resumes. No other state is
/// loaded.
async fn only<St>(kept: &Kept<St>, suspended: &ResumePoint) -> Result<Option<RunRecord>, Error>
where
    St: RunStore + ?Sized,
{
    let RunKey { tenant, thread, .. } = kept.key().clone();
    let message = match suspended {
        ResumePoint::UnverifiedHistory(open) => match open.message().id.clone() {
            None => return Ok(None),
            message => message,
        },
        _ => None,
    };
    // Runs that are not driven come first, so two entries show whether there are several.
    let runs = kept
        .store()
        .list_by_thread(tenant, thread, message, 2)
        .await?;
    if runs.len() > 1 && runs.iter().all(|run| run.status != RunStatus::Running) {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            "several runs of this conversation wait: add a reply that identifies the one to resume",
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
    // The run may have changed in the meantime.
    let is_meant = match suspended {
        ResumePoint::UnverifiedHistory(open) => is_same(&record.state, open),
        _ => true,
    };
    Ok(is_meant.then_some(record))
}

/// Returns whether `state` waits in the round of the same message as `open`.
fn is_same(state: &RunState, open: &OpenRound) -> bool {
    let round = state.open_round();
    let id = round.as_ref().and_then(|round| round.message().id.as_ref());
    id.is_some() && id == open.message().id.as_ref()
}

fn refuse(error: ReplyError, record: &RunRecord) -> Error {
    match &error {
        // The interrupt was emitted and is no longer open.
        ReplyError::Unknown(id) if record.asked.contains(id) => StoreError::Taken.into(),
        _ => Error::new(ErrorKind::InvalidRequest, error.to_string())
            .with_code(error.code())
            .with_source(error),
    }
}
