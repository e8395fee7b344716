//! The limits that single runs have.

use concentric_core::{AgentLayer, ChatRequest, ErrorKind, Outcome, RunOverrides};
use concentric_test::{ScriptedModel, ScriptedTools};
use serde_json::json;
use tower::{Layer, ServiceExt};

/// A model that makes one call in each of three steps, and then answers.
fn model() -> ScriptedModel {
    let call = |model: ScriptedModel| model.tool_call("look", json!({})).then();
    call(call(call(ScriptedModel::new()))).text("Done.")
}

#[tokio::test]
async fn the_smaller_limit_applies() {
    const NONE: Option<u32> = None;
    // The limits of the agent and of the run, and the number of model calls.
    let cases = [
        (9, NONE, 4, Outcome::Completed),
        (9, Some(2), 2, Outcome::StepLimit),
        (2, Some(9), 2, Outcome::StepLimit),
        (9, Some(u32::MAX), 4, Outcome::Completed),
        (9, Some(0), 1, Outcome::StepLimit),
    ];
    for (agents, runs, steps, outcome) in cases {
        let (model, tools) = (model(), ScriptedTools::new().answers("look", "seen"));
        let agent = AgentLayer::new(tools).step_limit(agents);
        let own = runs.map_or_else(RunOverrides::new, |n| RunOverrides::new().step_limit(n));
        let request = ChatRequest::user("hi").with_overrides(own);
        let answer = agent.layer(model.clone()).oneshot(request).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!((model.calls(), answer.finish.outcome), (steps, outcome));
    }
    let cases = [
        (None, Some(2), 2),
        (Some(1), Some(2), 1),
        (Some(2), Some(0), 0),
        (None, Some(u32::MAX), 3),
    ];
    for (agents, runs, done) in cases {
        let (model, tools) = (model(), ScriptedTools::new().answers("look", "seen"));
        let mut agent = AgentLayer::new(tools.clone());
        if let Some(limit) = agents {
            agent = agent.call_limit(limit);
        }
        // The smallest of several, in any order.
        let mut own = RunOverrides::new().call_limit(7);
        own.extend(RunOverrides::new().call_limit(runs.unwrap()));
        let own = match runs {
            Some(u32::MAX) => RunOverrides::new().call_limit(u32::MAX),
            _ => own,
        };
        let request = ChatRequest::user("hi").with_overrides(own);
        let answer = agent.layer(model).oneshot(request).await.unwrap();
        let answer = answer.collect().await.unwrap();
        let is_limited = answer.finish.outcome == Outcome::CallLimit;
        assert_eq!((tools.done(), is_limited), (done, done < 3));
    }
}

#[tokio::test]
async fn limits_and_names_need_a_loop() {
    for own in [
        RunOverrides::new().step_limit(1),
        RunOverrides::new().call_limit(1),
        RunOverrides::new().named("audit"),
    ] {
        let error = own.clone().into_tool_parts().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        let request = ChatRequest::user("hi").with_overrides(own);
        let error = request.check_stack().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
}
