use super::{RejectedAnswer, turns};
use concentric_core::{
    BoxError, Context, Error, Role, Str, Turn,
    agent::{BeforeFinish, BeforeStep, GateOrder, StepGate, StepView},
};
use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// Lets a run end only with an answer that your function accepts.
///
/// Your function judges the text of the answer. An answer that it complains of is void: the consumer
/// receives an [`Event::Reset`](concentric_core::Event::Reset), and the model is called again, with the
/// complaint. When that was done [often enough](Self::tries), the run fails with an error whose source
/// is a [`RejectedAnswer`], which has the complaint and the last answer.
///
/// Each try is a step, and counts like any other. A run that is interrupted, halted, cancelled or at
/// its step limit has no answer to be judged.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools, Str};
/// use concentric_layers::stop::{Judgement, OutputConstraint};
///
/// let short = OutputConstraint::new("short", |answer: Str, _| async move {
///     Ok(match answer.len() {
///         0..=280 => Judgement::Accept,
///         n => Judgement::complain(format!("Your answer has {n} bytes. Say it in 280.")),
///     })
/// });
/// let agent = AgentLayer::new(NoTools).gate(short.tries(3));
/// # let _ = agent;
/// ```
///
/// # A model as the judge
///
/// The function may wait, as for a model that grades the answer:
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
///             let ask = format!("Is this polite? Say OK, or what to change.\n\n{answer}");
///             let request = ChatRequest::user(ask).with_context(context.child().build());
///             let said = grader.oneshot(request).await?.text().await?;
///             Ok(match said.trim() {
///                 "OK" => Judgement::Accept,
///                 change => Judgement::complain(change),
///             })
///         }
///     })
/// }
/// # let _ = polite;
/// ```
///
/// Its calls are no steps of the run: they don't count towards the step limit, their events are not in
/// the run's stream, and their tokens not in the run's [usage](concentric_core::Finish::usage), nor in
/// what a [`Condition`](super::Condition) sees of it. With a context that is a
/// [child](Context::child) of the run's, they are within its deadline and the budgets that it has, if
/// the grader has a budget's layer of its own. What the grader reads was written by a model: tell it
/// so.
///
/// # Cancel safety
///
/// When the run is cancelled, or dropped, so is the judge's future.
#[derive(Clone)]
pub struct OutputConstraint {
    name: Str,
    judge: Arc<Judge>,
    tries: usize,
}

// Boxed, as each method of a gate is: once per answer.
type Judge = dyn Fn(Str, Context) -> Judging + Send + Sync;
type Judging = Pin<Box<dyn Future<Output = Result<Judgement, BoxError>> + Send>>;

/// What is said of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Judgement {
    /// It is as it is to be.
    Accept,
    /// It is not, and the model is told this.
    Complain(Str),
}

impl Judgement {
    /// Complains of the answer.
    pub fn complain(text: impl Into<Str>) -> Self {
        Self::Complain(text.into())
    }
}

impl OutputConstraint {
    /// Creates the constraint `name`, which no other gate of the agent is named. `judge` is given the
    /// text of the answer, and the context of the run.
    ///
    /// # Errors
    ///
    /// Those of `judge` fail the run: an answer that could not be judged is neither good nor bad.
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

    /// Sets how often the model may try again in a run; the default is 2.
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

    fn order(&self) -> GateOrder {
        GateOrder::Judgement
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        turns::note_begin(step)?;
        Ok(BeforeStep::Continue)
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        // An answer without a word is no turn.
        let last = step.transcript.last().map(Turn::as_message);
        let answer = last.filter(|message| message.role == Role::Assistant);
        let text = Str::from(answer.map(|answer| answer.text()).unwrap_or_default());
        let judged = (self.judge)(text.clone(), step.context.clone()).await?;
        let Judgement::Complain(complaint) = judged else {
            return Ok(BeforeFinish::Finish);
        };
        if turns::times_said_by(&self.name, step)? >= self.tries {
            let rejected = RejectedAnswer::new(self.name.clone(), complaint, text);
            return Err(Error::from(rejected).into());
        }
        let correction = turns::said_by(&self.name, complaint)?;
        Ok(BeforeFinish::Reject(vec![correction]))
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
