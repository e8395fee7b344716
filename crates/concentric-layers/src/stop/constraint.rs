use super::{RejectedAnswer, turns};
use concentric_core::{
    BoxError, Context, Error, Role, Str, Turn,
    agent::{FinishDecision, GateOrder, StepDecision, StepDraft, StepGate},
    hooks::Interest,
};
use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// Accepts or rejects the answer that a run would end with.
///
/// A function judges the text of the answer. If it complains, the answer is discarded: the consumer
/// receives an [`Event::Reset`](concentric_core::Event::Reset), and the model is called again with
/// the complaint. After the [maximum number of tries](Self::tries), the run fails with an error
/// whose source is a [`RejectedAnswer`], which contains the complaint and the last answer.
///
/// Each try is a step and counts towards the step limit. A run that is interrupted, halted,
/// cancelled or at its step limit has no final answer, so the function is not called.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools, Str};
/// use concentric_layers::stop::{Judgement, OutputConstraint};
///
/// let short = OutputConstraint::new("short", |answer: Str, _| async move {
///     Ok(match answer.len() {
///         0..=280 => Judgement::Accept,
///         n => Judgement::complain(format!("Your answer has {n} bytes. Use at most 280.")),
///     })
/// });
/// let agent = AgentLayer::new(NoTools).gate(short.tries(3));
/// # let _ = agent;
/// ```
///
/// # A model as the judge
///
/// The function may be asynchronous, for example to let a model grade the answer:
///
/// ```
/// use concentric_core::{BoxModel, ChatRequest, Context, Str};
/// use concentric_layers::stop::{Judgement, OutputConstraint};
/// use tower::ServiceExt;
///
/// fn polite(grader: BoxModel) -> OutputConstraint {
///     OutputConstraint::new("polite", move |answer: Str, context: Context| {
///         let grader = grader.clone();
///         async move {
///             let ask = format!("Is this polite? Answer OK, or list the changes to make.\n\n{answer}");
///             let request = ChatRequest::user(ask).with_context(context.child().build());
///             let grade = grader.oneshot(request).await?.text().await?;
///             Ok(match grade.trim() {
///                 "OK" => Judgement::Accept,
///                 change => Judgement::complain(change),
///             })
///         }
///     })
/// }
/// # let _ = polite;
/// ```
///
/// The grader's model calls are not steps of the run. They do not count towards the step limit,
/// their events are not in the run's stream, and their tokens are not part of the run's
/// [usage](concentric_core::Finish::usage) or of the usage that a [`Condition`](super::Condition)
/// reads. With a context that is a [child](Context::child) of the run's context, they share the
/// run's deadline, its [total usage](Context::run_usage), and its budgets if the grader has its own
/// budget layer. The grader reads text
/// that a model wrote: its prompt must state this.
///
/// # Cancel safety
///
/// The judge's future is dropped when the run is cancelled or dropped.
#[derive(Clone)]
pub struct OutputConstraint {
    name: Str,
    judge: Arc<Judge>,
    tries: usize,
}

// Boxed once per answer, like the other methods of a gate.
type Judge = dyn Fn(Str, Context) -> Judging + Send + Sync;
type Judging = Pin<Box<dyn Future<Output = Result<Judgement, BoxError>> + Send>>;

/// The judgement on an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Judgement {
    /// Accepts the answer.
    Accept,
    /// Rejects the answer. The model receives this complaint.
    Complain(Str),
}

impl Judgement {
    /// Rejects the answer with a complaint.
    pub fn complain(text: impl Into<Str>) -> Self {
        Self::Complain(text.into())
    }
}

impl OutputConstraint {
    /// Creates a constraint. `name` must be unique among the gates of the agent.
    ///
    /// `judge` receives the text of the answer and the context of the run.
    ///
    /// # Errors
    ///
    /// An error of `judge` fails the run, because the answer could not be judged.
    pub fn new<F, Fut>(name: impl Into<Str>, judge: F) -> Self
    where
        F: Fn(Str, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Judgement, BoxError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            judge: Arc::new(move |answer, context| Box::pin(judge(answer, context))),
            tries: 2,
        }
    }

    /// Sets the number of further tries in a run; the default is 2.
    #[must_use]
    pub fn tries(mut self, tries: usize) -> Self {
        self.tries = tries;
        self
    }
}

impl StepGate for OutputConstraint {
    fn name(&self) -> &str {
        &self.name
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP | Interest::BEFORE_FINISH
    }

    fn order(&self) -> GateOrder {
        GateOrder::Judgement
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        turns::note_begin(draft)?;
        Ok(StepDecision::Continue)
    }

    async fn before_finish(&self, draft: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        // An empty answer adds no turn to the transcript.
        let last = draft.transcript.last().map(Turn::as_message);
        let answer = last.filter(|message| message.role == Role::Assistant);
        let text = Str::from(answer.map(|answer| answer.text()).unwrap_or_default());
        let judged = (self.judge)(text.clone(), draft.context.clone()).await?;
        let Judgement::Complain(complaint) = judged else {
            return Ok(FinishDecision::Finish);
        };
        if turns::times_said_by(&self.name, draft)? >= self.tries {
            let rejected = RejectedAnswer::new(self.name.clone(), complaint, text);
            return Err(Error::from(rejected).into());
        }
        draft.push(turns::said_by(&self.name, complaint)?);
        Ok(FinishDecision::Retry { void: true })
    }
}

impl fmt::Debug for OutputConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputConstraint")
            .field("name", &self.name)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
