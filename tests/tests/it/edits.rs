//! Edits of calls whose run is in a store.

use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Context, Error, Outcome, Reply, ReplyKind, ThreadId,
};
use concentric_layers::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_test::{Pace, ScriptedModel, watched};
use concentric_tools::{Approval, Toolset, tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceExt};

#[derive(Deserialize, JsonSchema)]
struct Pay {
    eur: u8,
}

async fn run(agent: &BoxModel, request: ChatRequest) -> Result<Answer, Error> {
    let thread = Context::builder().thread_id(ThreadId::new("t")).build();
    let response = agent.clone().oneshot(request.with_context(thread)).await?;
    Ok(response.collect().await?)
}

#[test]
fn a_stored_question_survives_an_edit_that_does_not_fit() {
    for pace in Pace::ALL {
        let paid = watched(async move {
            let paid = Arc::new(Mutex::new(Vec::new()));
            let pays = Arc::clone(&paid);
            let pay = tool("pay", "", move |Pay { eur }| {
                pays.lock().unwrap().push(eur);
                async {}
            });
            let store = SqliteStore::open_in_memory().unwrap();
            let tools = Toolset::new()
                .tool(pay)
                .gate(Approval::for_tools("pay").replies([ReplyKind::Edit]))
                .ledger(store.clone());
            let model = ScriptedModel::new()
                .paced(pace)
                .tool_call("pay", json!({"eur": 1}))
                .then()
                .text("Paid.");
            let agent = AgentLayer::new(tools).layer(model);
            let agent = BoxModel::new(SuspendLayer::new(Arc::new(store)).layer(agent));
            let asked = run(&agent, ChatRequest::user("hi")).await.unwrap();
            let id = asked.finish.interrupts()[0].id.clone();
            let edit = |eur: u32| {
                let edited = Reply::approve_edited(id.clone(), json!({"eur": eur}));
                ChatRequest::replying(vec![edited])
            };
            for _ in 0..2 {
                let refused = run(&agent, edit(700)).await.unwrap_err();
                assert_eq!(refused.code(), Some("malformed_reply"));
            }
            let answer = run(&agent, edit(7)).await.unwrap();
            assert_eq!(answer.finish.outcome, Outcome::Completed);
            std::mem::take(&mut *paid.lock().unwrap())
        });
        assert_eq!(paid, [7], "{pace:?}");
    }
}
