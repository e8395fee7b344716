use super::*;

fn digits() -> OutputConstraint {
    OutputConstraint::new("digits", |answer, _| async move {
        let is_number = !answer.is_empty() && answer.chars().all(|c| c.is_ascii_digit());
        Ok(match is_number {
            true => Judgement::Accept,
            false => Judgement::complain("Answer with a number."),
        })
    })
}

#[tokio::test]
async fn a_wrong_answer_is_corrected() {
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(answer.finish.usage, Usage::new(2, 2));
    let transcript = answer.finish.transcript.unwrap();
    let said: Vec<_> = transcript.iter().map(|t| t.as_message().text()).collect();
    assert_eq!(said, ["hi", "forty-two", "Answer with a number.", "42"]);
}

/// The error of a run of `model` with `gate`, and how often the model was called.
async fn rejected(agent: AgentLayer<ScriptedTools>, model: ScriptedModel) -> (Rejected, usize) {
    let agent = agent.layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    (rejection(&error), model.calls())
}

type Rejected = (String, String, String);

fn rejection(error: &Error) -> Rejected {
    assert_eq!(error.code(), Some("answer_rejected"));
    let source = error.source().unwrap();
    let rejected: &RejectedAnswer = source.downcast_ref().unwrap();
    (
        rejected.gate().to_owned(),
        rejected.complaint().to_owned(),
        rejected.answer().to_owned(),
    )
}

fn rejection_of(gate: &str, complaint: &str, answer: &str) -> Rejected {
    (gate.to_owned(), complaint.to_owned(), answer.to_owned())
}

#[tokio::test]
async fn an_answer_that_stays_wrong_fails_the_run() {
    let wrong = || says(&["a", "b", "c", "d", "e"]);
    let agent = |gate| AgentLayer::new(tools()).gate(gate);
    let error = |answer| rejection_of("digits", "Answer with a number.", answer);
    assert_eq!(rejected(agent(digits()), wrong()).await, (error("c"), 3));
    let none = digits().tries(0);
    assert_eq!(rejected(agent(none), wrong()).await, (error("a"), 1));
}

#[tokio::test]
async fn a_rejected_answer_is_followed_by_a_reset() {
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model);
    let body = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .body;
    let (events, _) = assert_finishes(body).await;
    let shape = shape(&events);
    assert_eq!(
        shape,
        "step_start text step_finish reset step_start text step_finish finish"
    );
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model);
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.text(), "42");
}

#[tokio::test]
async fn an_answer_without_retries_is_not_void() {
    let agent = AgentLayer::new(tools())
        .step_limit(1)
        .gate(digits())
        .layer(says(&["forty-two", "42"]));
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::StepLimit);
    assert!(!events.iter().any(|event| matches!(event, Event::Reset)));
}

#[tokio::test]
async fn later_gates_judge_only_the_final_answer() {
    let agent = || AgentLayer::new(tools()).gate(digits()).gate(short());
    let model = says(&["forty-two", "42"]);
    let answer = run(&agent().layer(model.clone()), ChatRequest::user("hi")).await;
    assert_eq!(
        (answer.finish.outcome, model.calls()),
        (Outcome::Completed, 2)
    );
    // It is judged by the second once the first has it.
    let long = |answer| rejection_of("short", "That is long.", answer);
    let model = says(&["forty-two", "4242"]);
    assert_eq!(rejected(agent(), model).await, (long("4242"), 2));
    // The other way round, it is.
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(short()).gate(digits());
    assert_eq!(rejected(agent, model).await, (long("forty-two"), 1));
}

/// Asks before the end, and then says what it is to.
struct Hears(&'static str, FinishDecision);

impl StepGate for Hears {
    fn name(&self) -> &str {
        self.0
    }

    async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        let id = step.interrupt_id(self.0);
        Ok(match step.reply(&id) {
            None => FinishDecision::ask(Interrupt::new(id, "enough")),
            Some(_) => {
                step.push(Turn::user("More."));
                self.1.clone()
            }
        })
    }
}

#[tokio::test]
async fn a_gate_receives_its_reply_after_an_earlier_continue() {
    let more = FinishDecision::Retry { void: false };
    let model = says(&["a", "b"]);
    let agent = AgentLayer::new(tools())
        .gate(Hears("first", more))
        .gate(Hears("second", FinishDecision::halt("it is told to")))
        .layer(model.clone());
    let asked = run(&agent, ChatRequest::user("hi")).await;
    let questions = asked.finish.interrupts();
    assert_eq!(questions.len(), 2);
    let replies = questions
        .iter()
        .map(|ask| Reply::resolve(ask.id.clone(), json!({})));
    let request = ChatRequest::resume(state_of(&asked), replies.collect());
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, halted("it is told to"));
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn an_empty_answer_is_judged() {
    let model = ScriptedModel::new()
        .finish(Finish::new(FinishReason::Stop, Usage::new(1, 1)))
        .then()
        .text("42");
    assert_eq!(ends(digits(), model).await, (Outcome::Completed, 2, 0));
}

#[tokio::test]
async fn a_correction_is_a_step_like_any_other() {
    let agent = AgentLayer::new(tools())
        .step_limit(2)
        .gate(digits().tries(10))
        .layer(says(&["a", "b", "c"]));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
}

#[tokio::test]
async fn tries_are_counted_across_a_suspension_only() {
    let model = ScriptedModel::new()
        .text("a")
        .then()
        .tool_call("pay", json!({}))
        .then()
        .text("b")
        .then()
        .text("c");
    let gate = || digits().tries(1);
    let agent = AgentLayer::new(tools()).gate(gate()).layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let resumed = reply(&state, Reply::approve);
    let mut transcript = state.transcript().clone();
    let body = agent.oneshot(resumed).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(rejection(&error).2, "b");
    assert_eq!(model.calls(), 3);

    let mut request = ChatRequest::user("");
    transcript.push_user("again");
    request.transcript = transcript;
    let model = says(&["d", "42"]);
    let agent = AgentLayer::new(tools()).gate(gate()).layer(model);
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

// Case C093.
#[tokio::test]
async fn a_suspended_run_has_no_answer_to_judge() {
    let model = ScriptedModel::new()
        .text("I will pay.")
        .tool_call("pay", json!({}))
        .then()
        .text("42");
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let answer = run(&agent, reply(&state, Reply::approve)).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_failing_judge_fails_the_run() {
    let judge = |_, _| async { Err("the grader is down".into()) };
    let constraint = OutputConstraint::new("graded", judge);
    let model = says(&["a", "b"]);
    let agent = AgentLayer::new(tools())
        .gate(constraint)
        .layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let error = body.collect().await.unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Other);
    let said = "the step gate `graded` failed: the grader is down";
    assert_eq!(error.message(), said);
    assert_eq!(model.calls(), 1);
}

#[cfg(feature = "budget")]
mod graded {
    use super::*;
    use concentric_core::{CancelReason, Context, Str};
    use concentric_layers::budget::{Budget, BudgetPlugin, Limits};

    /// Has `grader` say whether an answer is good.
    fn graded(grader: &ScriptedModel) -> OutputConstraint {
        let grader = BudgetPlugin::new(Limits::new())
            .model()
            .layer(grader.clone());
        OutputConstraint::new("graded", move |answer: Str, context: Context| {
            let grader = grader.clone();
            async move {
                let request = ChatRequest::user(format!("Is this good? {answer}"));
                let request = request.with_context(context.child().build());
                let said = grader.oneshot(request).await?.text().await?;
                Ok(match said.as_str() {
                    "yes" => Judgement::Accept,
                    why => Judgement::complain(why),
                })
            }
        })
    }

    #[tokio::test]
    async fn a_judges_tokens_charge_the_budget_only() {
        let grader = ScriptedModel::new()
            .usage(Usage::new(100, 10))
            .text("Be brief.")
            .then()
            .usage(Usage::new(100, 10))
            .text("yes");
        let model = says(&["well, 42", "42"]);
        let agent = AgentLayer::new(tools())
            .step_limit(2)
            .gate(graded(&grader))
            .layer(model);
        let budget = Budget::new(Limits::new());
        let mut request = ChatRequest::user("hi");
        request.context.provide(budget.clone());
        let answer = run(&agent, request).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        let transcript = answer.finish.transcript.unwrap();
        let said: Vec<_> = transcript.iter().map(|t| t.as_message().text()).collect();
        assert_eq!(said, ["hi", "well, 42", "Be brief.", "42"]);
        let asked = grader.request(0).transcript;
        let asked = asked.last().unwrap().as_message().text();
        assert_eq!(asked, "Is this good? well, 42");

        assert_eq!(answer.finish.usage, Usage::new(2, 2));
        assert_eq!(budget.spent().input_tokens, 200);
        assert_eq!(budget.spent().model_calls, 2);
    }

    #[tokio::test]
    async fn a_judging_model_stops_with_the_run() {
        let grader = ScriptedModel::new().text("Well").never();
        let agent = AgentLayer::new(tools())
            .gate(graded(&grader))
            .layer(says(&["a"]));
        let mut request = ChatRequest::user("hi");
        request.context.provide(Budget::new(Limits::new()));
        let context = request.context.clone();
        let mut answer = tokio_test::task::spawn(run(&agent, request));
        assert!(answer.poll().is_pending());
        assert_eq!(grader.live(), 1);
        context.cancel(CancelReason::User);
        let answer = answer.await;
        let reason = CancelReason::User;
        assert_eq!(answer.finish.outcome, Outcome::Aborted { reason });
        assert_eq!((grader.live(), grader.dropped()), (0, 1));
    }
}
