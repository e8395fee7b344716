//! Calls that wait until the client repeats them with answers.

use concentric_core::{RunId, machine::RunState, store::Tenant};
use rmcp::model::{CallToolRequestParams, JsonObject};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The time for the answers.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// The waiting calls of all clients.
const MAX_WAITING: usize = 1_000;
/// Their states (bytes).
const MAX_BYTES: usize = 64 << 20;

/// A call that was suspended.
pub(super) struct WaitingCall {
    pub(super) state: Box<RunState>,
    pub(super) run: RunId,
    pub(super) tenant: Tenant,
}

/// The suspended calls by their request state. This is a random name, so that a client neither
/// reads nor changes the state, and uses it once.
#[derive(Default)]
pub(super) struct WaitingCalls(Mutex<HashMap<String, Entry>>);

struct Entry {
    call: WaitingCall,
    bytes: usize,
    until: Instant,
}

impl WaitingCalls {
    /// Keeps a call, and returns its request state.
    ///
    /// # Errors
    ///
    /// The text of the result.
    pub(super) fn insert(&self, call: WaitingCall) -> Result<String, &'static str> {
        const FULL: &str =
            "The call was not run: too many calls wait for answers. Try again later.";
        const FAILED: &str = "The call was not run: its state cannot be kept.";
        let bytes = call.state.to_json().map_err(|_| FAILED)?.len();
        let name = random_name().ok_or(FAILED)?;
        let now = Instant::now();
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|_, entry| entry.until > now);
        let others: usize = calls.values().map(|entry| entry.bytes).sum();
        if calls.len() >= MAX_WAITING || others.saturating_add(bytes) > MAX_BYTES {
            return Err(FULL);
        }
        let until = now + LIFETIME;
        calls.insert(name.clone(), Entry { call, bytes, until });
        Ok(name)
    }

    /// Removes and returns a call of `tenant`, if `repeated` has the same tool and arguments.
    pub(super) fn take(
        &self,
        name: &str,
        tenant: &Tenant,
        repeated: &CallToolRequestParams,
    ) -> Option<WaitingCall> {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Entry { call, until, .. } = calls.get(name)?;
        if *until <= Instant::now() || call.tenant != *tenant || !is_same(&call.state, repeated) {
            return None;
        }
        calls.remove(name).map(|entry| entry.call)
    }
}

fn is_same(state: &RunState, repeated: &CallToolRequestParams) -> bool {
    let Some(round) = state.open_round() else {
        return false;
    };
    let mut calls = round.calls().map(|(call, _)| call);
    calls.next().is_some_and(|call| {
        let arguments = serde_json::from_str::<JsonObject>(call.arguments.as_str());
        let repeated_arguments = repeated.arguments.clone().unwrap_or_default();
        call.name == *repeated.name && arguments.is_ok_and(|it| it == repeated_arguments)
    })
}

fn random_name() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    let mut name = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::{CallId, Context, Message, Part, PartKind, Role, ToolCallPart};
    use concentric_tools::{Approval, NoArguments, RoundEnd, ToolLifecycle, Toolset, tool};

    async fn suspended() -> WaitingCall {
        let erase = tool("erase", "", async |NoArguments {}| "erased");
        let tools = Toolset::new()
            .tool(erase)
            .gate(Approval::for_tools("erase"));
        let call = ToolCallPart::new(CallId::new("call_1"), "erase", "{}");
        let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
        let end = ToolLifecycle::new(tools).execute_round(message).await;
        let Ok(RoundEnd::Suspended(state)) = end else {
            unreachable!("{end:?}");
        };
        let context = Context::new();
        let (run, tenant) = (context.run_id().clone(), Tenant::of(&context));
        WaitingCall { state, run, tenant }
    }

    #[tokio::test]
    async fn a_call_is_taken_once_and_by_itself_only() {
        let waiting = WaitingCalls::default();
        let call = suspended().await;
        let tenant = call.tenant.clone();
        let foreign = Tenant("other".into());
        let name = waiting.insert(call).expect("room");
        let erase = CallToolRequestParams::new("erase");
        let other = CallToolRequestParams::new("other");
        let arguments = JsonObject::from_iter([("all".to_owned(), true.into())]);
        let changed = erase.clone().with_arguments(arguments);
        assert!(waiting.take(&name, &tenant, &other).is_none());
        assert!(waiting.take(&name, &tenant, &changed).is_none());
        assert!(waiting.take(&name, &foreign, &erase).is_none());
        assert!(waiting.take("unknown", &tenant, &erase).is_none());
        assert!(waiting.take(&name, &tenant, &erase).is_some());
        assert!(waiting.take(&name, &tenant, &erase).is_none());
    }

    #[tokio::test]
    async fn only_a_number_of_calls_wait() {
        let waiting = WaitingCalls::default();
        for _ in 0..MAX_WAITING {
            let call = suspended().await;
            waiting.insert(call).expect("room");
        }
        assert!(waiting.insert(suspended().await).is_err());
    }
}
