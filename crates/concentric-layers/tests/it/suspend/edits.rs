use super::*;
use concentric_core::{
    BoxError,
    agent::{StepDecision, StepDraft, StepGate},
};

/// Edits the run before its first step.
struct Edits;

impl StepGate for Edits {
    fn name(&self) -> &str {
        "edits"
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        if draft.step == 0 {
            *draft.system_mut() = ChatRequest::user("").with_system("Edited.").system;
            draft.retain_tools(|tool| tool.name == "pay");
            draft.rewrite(1, vec![Turn::user("Earlier.")])?;
        }
        Ok(StepDecision::Continue)
    }
}

#[tokio::test]
async fn a_run_that_another_process_resumes_keeps_its_edits() {
    let dir = tempfile::tempdir().unwrap();
    let world = TestEnvironment::new();
    let model = payer();
    // The other process has another store over the same file, and another agent.
    let agent = || {
        let store = SqliteStore::open(dir.path().join("runs")).unwrap();
        let tools = ScriptedTools::new().asks("pay", "paid").answers("look", "");
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(store)))
            .layer(AgentLayer::new(tools).gate(Edits))
            .service(model.clone())
    };
    let response = agent().oneshot(request(&world, "run")).await.unwrap();
    let (_, finish) = assert_finishes(response.body).await;
    let asked: Vec<_> = finish
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let response = agent()
        .oneshot(reply(&world, "next", approve(&asked)))
        .await;
    assert_finishes(response.unwrap().body).await;
    assert_eq!(model.calls(), 2);
    for step in 0..2 {
        let request = model.request(step);
        assert_eq!(request.system.text(), "Edited.");
        assert_eq!(request.tools.len(), 1);
        let first = request.transcript.iter().next().unwrap();
        assert_eq!(first.as_message().text(), "Earlier.");
    }
}
