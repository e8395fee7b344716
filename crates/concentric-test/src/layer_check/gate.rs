//! The check of a gate of tool calls.

use super::{
    calls::{fail, for_a_while, in_time},
    step_gate::Run,
};
use crate::{ScriptedModel, ScriptedTools, Spurious, drop_at_each_wait, tools::question};
use concentric_core::{
    AgentLayer, Arguments, BoxError, CallId, Clearance, Context, Error, Reply, RoundCall,
    Suspension, ToolCall, ToolCallPart, ToolOutcome, ToolSpec, Transcript,
    gate::{Decided, Gate, Verdict},
    panic::caught,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tower::service_fn;

/// Checks a gate of tool calls with a call that it holds back: a call of `tool` with `arguments` that it
/// denies, or for which it requires an approval or ends the run.
///
/// ```
/// use concentric_core::{ToolSpec, gate::{Verdict, gate_fn}};
/// use concentric_test::check_gate;
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let gate = gate_fn("no_refunds", |call| match call.name().as_str() {
///     "refund" => Verdict::deny("Refunds are paid by the accounting department."),
///     _ => Verdict::Pass,
/// });
/// let refund = ToolSpec::new("refund", "Pays a refund.", json!({"type": "object"}));
/// check_gate(gate, refund, json!({"amount": 3, "currency": "EUR"})).await;
/// # }
/// ```
///
/// The gate
/// - has a policy, which does not change;
/// - holds the call back each time, also while it decides about another call, and after a decision that was
///   dropped at any await point;
/// - is not weaker for the same arguments as other JSON text, for another call id, or for a call that is
///   resumed with an approval;
/// - decides about arguments of any form, such as an approver or the model may send, without a panic;
/// - tolerates spurious polls, and wakes the waker of its last poll;
/// - decides in time.
///
/// An error counts as a denial, as in a toolset, and the strictest verdict of all gates applies: a gate that
/// passes these checks is never weaker than its absence. To show that it holds calls back while a service that
/// it calls is broken or hangs, check it with such a service.
///
/// The check needs a tokio runtime with a timer, which may be paused.
///
/// # Panics
///
/// Panics if the gate breaks a rule; the message names it. Panics if `arguments` are not JSON.
pub async fn check_gate(gate: impl Gate, tool: ToolSpec, arguments: impl Into<Arguments>) {
    let arguments = arguments.into();
    let value = serde_json::from_str(arguments.as_str());
    let value: Value = value.expect("the arguments are one JSON value");
    let gate: Arc<dyn Gate> = Arc::new(gate);
    let policy = gate.policy();
    assert!(!policy.is_empty(), "the gate has no policy");
    let tool = Arc::new(tool);
    let call = |id: &str, arguments: Arguments| {
        let part = ToolCallPart::new(CallId::new(id), tool.name.clone(), arguments);
        let call = RoundCall::new(0, part);
        ToolCall::of_round(call, Clearance::Ungated, Transcript::new(), &Context::new())
            .with_spec(Arc::clone(&tool))
    };
    let held = call("c1", arguments.clone());
    let mut first = Verdict::Pass;
    in_time("a decision", async {
        first = decide(&*gate, &held).await;
    })
    .await;
    assert!(
        !matches!(first, Verdict::Pass | Verdict::Allow),
        "the gate does not hold the call back: {first:?}"
    );

    in_time("a second decision", async {
        let (again, other) = (call("c1", arguments.clone()), call("c2", "{}".into()));
        let mut waits = Box::pin(decide(&*gate, &again));
        let early = for_a_while(waits.as_mut()).await;
        decide(&*gate, &other).await;
        let again = match early {
            Some(verdict) => verdict,
            None => waits.await,
        };
        assert_not_weaker(&first, &again, "the second time");
    })
    .await;

    in_time("a decision about the same arguments", async {
        let same = call("c3", spaced(&value).into());
        let verdict = decide(&*gate, &same).await;
        assert_not_weaker(
            &first,
            &verdict,
            "about the same arguments as other JSON text",
        );
    })
    .await;

    for edited in hostile() {
        let edited = call("c1", edited.into());
        in_time("a decision about edited arguments", async {
            decide(&*gate, &edited).await;
        })
        .await;
    }

    in_time("a decision that is polled without a wakeup", async {
        let verdict = Spurious::new(decide(&*gate, &held)).await;
        assert_not_weaker(&first, &verdict, "polled without a wakeup");
    })
    .await;

    in_time("a decision that is dropped at each await point", async {
        drop_at_each_wait(
            || decide(&*gate, &held),
            async |polls| {
                let verdict = decide(&*gate, &held).await;
                let when = format!("after a decision that was dropped after {polls} polls");
                assert_not_weaker(&first, &verdict, &when);
            },
        )
        .await;
    })
    .await;

    in_time("a decision about a resumed call", async {
        let verdict = decide_resumed(&gate, &tool, &arguments).await;
        assert_not_weaker(&first, &verdict, "about a resumed call");
    })
    .await;
    assert_eq!(gate.policy(), policy, "the policy of the gate changes");
}

async fn decide(gate: &dyn Gate, call: &ToolCall) -> Verdict {
    let decided = caught(|| async {
        match gate.decide(call) {
            Decided::Now(verdict) => Ok(verdict),
            Decided::Later(verdict) => verdict.await,
        }
    });
    match decided.await {
        Ok(decided) => decided.unwrap_or_else(|error: BoxError| Verdict::deny(error.to_string())),
        Err(panic) => fail(&format!("the gate panicked: {panic:?}")),
    }
}

/// The verdict about a call that waited, and that a reply approved.
async fn decide_resumed(gate: &Arc<dyn Gate>, tool: &ToolSpec, arguments: &Arguments) -> Verdict {
    let verdict = Arc::new(Mutex::new(Verdict::Pass));
    let (gate, decided) = (Arc::clone(gate), Arc::clone(&verdict));
    let service = service_fn(move |call: ToolCall| {
        let (gate, decided) = (Arc::clone(&gate), Arc::clone(&decided));
        async move {
            let verdict = decide(&*gate, &call).await;
            *decided.lock().unwrap_or_else(PoisonError::into_inner) = verdict;
            Ok::<_, Error>(ToolOutcome::done(""))
        }
    });
    let tools = ScriptedTools::new()
        .service(tool.clone(), service)
        .waits(tool.name.clone(), |call| {
            Suspension::new(vec![question(call)])
        });
    let run = Run {
        model: ScriptedModel::new()
            .tool_call(tool.name.clone(), arguments.clone())
            .then()
            .text("Done."),
        tools,
    };
    let agent = || AgentLayer::new(run.tools.clone());
    if let Err(error) = run.play(&run.model, agent, Reply::approve).await {
        fail(&format!("the call was not resumed: {error}"));
    }
    let verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
    verdict.clone()
}

#[track_caller]
fn assert_not_weaker(first: &Verdict, verdict: &Verdict, when: &str) {
    assert_eq!(
        verdict.clone().and(first.clone()).as_str(),
        verdict.as_str(),
        "the gate is weaker {when}: {first:?}, then {verdict:?}"
    );
}

/// The same JSON with spaces, and with escapes in its strings and keys.
fn spaced(value: &Value) -> String {
    let escaped = |text: &str| -> String {
        let units = text.encode_utf16();
        let escaped: String = units.map(|unit| format!("\\u{unit:04x}")).collect();
        format!("\"{escaped}\"")
    };
    match value {
        Value::String(text) => escaped(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(spaced).collect();
            format!("[ {} ]", items.join(" , "))
        }
        Value::Object(fields) => {
            let fields = fields.iter().rev();
            let fields: Vec<_> = fields
                .map(|(key, value)| format!("{} : {}", escaped(key), spaced(value)))
                .collect();
            format!("{{ {} }}", fields.join(" , "))
        }
        other => other.to_string(),
    }
}

/// Arguments that no tool expects.
fn hostile() -> [String; 8] {
    [
        String::new(),
        "null".to_owned(),
        "{".to_owned(),
        r#"{"amount": "\ud800"}"#.to_owned(),
        r#"{"amount": 1e999, "amount": -1}"#.to_owned(),
        "[".repeat(100_000),
        format!("{{\"amount\": {}}}", "9".repeat(10_000)),
        json!({"amount": "x".repeat(1 << 16)}).to_string(),
    ]
}
