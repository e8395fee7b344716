//! The rules of the protocol: the fields of each event, and the order of events.
//!
//! The order is that of `verifyEvents` in `@ag-ui/client` 1.0; `tests/clients/verify.mjs` compares
//! the two. Chunk events are not verified: the client expands them before verification.

use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The fields of each event: the required ones, and the optional ones after a `?`. Every event may
/// also have those of [`COMMON`].
const EVENTS: &[(&str, &str)] = &[
    ("TEXT_MESSAGE_START", "messageId ? role name subagentRunId"),
    ("TEXT_MESSAGE_CONTENT", "messageId delta ? subagentRunId"),
    ("TEXT_MESSAGE_END", "messageId ? subagentRunId"),
    (
        "TEXT_MESSAGE_CHUNK",
        "? messageId role delta name subagentRunId",
    ),
    (
        "TOOL_CALL_START",
        "toolCallId toolCallName ? parentMessageId subagentRunId",
    ),
    ("TOOL_CALL_ARGS", "toolCallId delta ? subagentRunId"),
    ("TOOL_CALL_END", "toolCallId ? subagentRunId"),
    (
        "TOOL_CALL_CHUNK",
        "? toolCallId toolCallName parentMessageId delta subagentRunId",
    ),
    (
        "TOOL_CALL_RESULT",
        "messageId toolCallId content* ? role subagentRunId",
    ),
    ("STATE_SNAPSHOT", "snapshot* ? subagentRunId"),
    ("STATE_DELTA", "delta[] ? subagentRunId"),
    ("MESSAGES_SNAPSHOT", "messages[] ?"),
    (
        "ACTIVITY_SNAPSHOT",
        "messageId activityType content{} ? replace! subagentRunId",
    ),
    (
        "ACTIVITY_DELTA",
        "messageId activityType patch[] ? subagentRunId",
    ),
    ("RAW", "event* ? source subagentRunId"),
    ("CUSTOM", "name value* ? subagentRunId"),
    (
        "RUN_STARTED",
        "threadId runId ? protocolVersion parentRunId input{}",
    ),
    ("RUN_FINISHED", "threadId runId ? result* outcome{} usage[]"),
    ("RUN_ERROR", "message ? code usage[]"),
    ("STEP_STARTED", "stepName ? subagentRunId"),
    ("STEP_FINISHED", "stepName ? subagentRunId"),
    ("REASONING_START", "messageId ? subagentRunId"),
    ("REASONING_MESSAGE_START", "messageId role ? subagentRunId"),
    (
        "REASONING_MESSAGE_CONTENT",
        "messageId delta ? subagentRunId",
    ),
    ("REASONING_MESSAGE_END", "messageId ? subagentRunId"),
    ("REASONING_MESSAGE_CHUNK", "? messageId delta subagentRunId"),
    ("REASONING_END", "messageId ? subagentRunId"),
    (
        "REASONING_ENCRYPTED_VALUE",
        "subtype entityId encryptedValue ? subagentRunId",
    ),
    (
        "SUBAGENT_STARTED",
        "subagentRunId name ? description parentSubagentRunId parentToolCallId parentMessageId",
    ),
    ("SUBAGENT_FINISHED", "subagentRunId ? result* outcome{}"),
    ("SUBAGENT_ERROR", "subagentRunId message ? code"),
];

const COMMON: &str = "timestamp# rawEvent* metadata{}";

/// Checks that `event` is of a known type and has its fields, each of the right kind.
pub fn check_fields(event: &Value) -> Result<(), String> {
    let name = event["type"].as_str().ok_or("no type")?;
    let known = EVENTS.iter().find(|(known, _)| *known == name);
    let (_, fields) = known.ok_or_else(|| format!("{name}: unknown event"))?;
    let (required, optional) = fields.split_once('?').ok_or("a table without `?`")?;
    let mut rest: HashSet<&str> = event
        .as_object()
        .ok_or("no object")?
        .keys()
        .map(String::as_str)
        .collect();
    rest.remove("type");
    for (fields, is_required) in [(required, true), (optional, false), (COMMON, false)] {
        for field in fields.split_whitespace() {
            let at = field.find(|c: char| !c.is_alphanumeric());
            let (field, kind) = field.split_at(at.unwrap_or(field.len()));
            let value = &event[field];
            let is_kind = match kind {
                "" => value.is_string(),
                "[]" => value.is_array(),
                "{}" => value.is_object(),
                "!" => value.is_boolean(),
                "#" => value.as_i64().is_some_and(|it| it.unsigned_abs() < 1 << 53),
                // An optional `null` fails the run of the reference client.
                _ => is_required || !value.is_null(),
            };
            if rest.remove(field) && !is_kind {
                return Err(format!("{name}: invalid {field}"));
            }
            if is_required && event.get(field).is_none() {
                return Err(format!("{name}: missing {field}"));
            }
        }
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(format!("{name}: unknown fields {rest:?}")),
    }
}

/// Returns whether the event ends its run.
pub fn is_terminal(event: &Value) -> bool {
    matches!(event["type"].as_str(), Some("RUN_FINISHED" | "RUN_ERROR"))
}

const TEXT: &str = "text message";
const CALL: &str = "tool call";
const SPAN: &str = "reasoning span";
const REASONING: &str = "reasoning message";
const ACTIVITY: &str = "activity";
const STEP: &str = "step";
const SUBAGENT: &str = "sub-agent";

/// The producer of an event: a sub-agent's run, or `None` for the agent itself.
type Owner = Option<String>;

/// Verifies that a stream of events follows the rules of the protocol. A rejected event does not
/// change the verifier.
#[derive(Default)]
pub struct Verifier {
    phase: Phase,
    run: Run,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    New,
    Running,
    Finished,
    Failed,
}

#[derive(Default)]
struct Run {
    /// The open ids of each kind. Steps are open per owner.
    open: BTreeSet<(&'static str, String)>,
    open_steps: BTreeSet<(String, Owner)>,
    closed_subagents: HashSet<String>,
    // Owners are kept after a close, since data about a closed tool call may still arrive.
    owners: HashMap<(&'static str, String), Owner>,
}

impl Verifier {
    pub fn is_terminated(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Failed)
    }

    pub fn verify(&mut self, event: &Value) -> Result<(), String> {
        let name = event["type"].as_str().unwrap_or_default();
        match (self.phase, name) {
            (Phase::Running, "RUN_STARTED") => {
                return Err("RUN_STARTED: a run is already in progress".to_owned());
            }
            (_, "RUN_STARTED") | (Phase::Running, _) => {}
            (Phase::New | Phase::Finished, "RUN_ERROR") => {}
            (Phase::New, _) => {
                return Err(format!(
                    "{name}: the first event must be RUN_STARTED or RUN_ERROR"
                ));
            }
            (Phase::Finished, _) => return Err(format!("{name}: the run has already finished")),
            (Phase::Failed, _) => return Err(format!("{name}: the run has already failed")),
        }
        match name {
            "RUN_STARTED" => {
                self.run = Run::default();
                self.run.seed(&event["input"]["messages"], false);
                self.phase = Phase::Running;
            }
            "RUN_FINISHED" => {
                self.run.finish(event)?;
                self.phase = Phase::Finished;
            }
            "RUN_ERROR" => self.phase = Phase::Failed,
            _ => self.run.apply(&At { name, event })?,
        }
        Ok(())
    }

    /// Clients treat a stream that ends without a terminal event as a success.
    pub fn finish(&self) -> Result<(), String> {
        match self.is_terminated() {
            true => Ok(()),
            false => Err("stream ended without a terminal event".to_owned()),
        }
    }
}

/// An event and its type, for errors.
struct At<'a> {
    name: &'a str,
    event: &'a Value,
}

impl At<'_> {
    fn field(&self, field: &str) -> String {
        self.event[field].as_str().unwrap_or_default().to_owned()
    }

    fn tag(&self) -> Owner {
        owner(self.event)
    }

    fn already_open(&self, kind: &str, id: &str) -> String {
        format!("{}: {kind} `{id}` is already open", self.name)
    }

    fn not_open(&self, kind: &str, id: &str) -> String {
        format!("{}: {kind} `{id}` is not open", self.name)
    }

    fn other_owner(&self, kind: &str, id: &str, tag: &Owner, owner: &Owner) -> String {
        let agent = |owner: &Owner| match owner {
            Some(id) => format!("sub-agent `{id}`"),
            None => "the agent".to_owned(),
        };
        let (owner, tag) = (agent(owner), agent(tag));
        format!(
            "{}: {kind} `{id}` belongs to {owner}, not to {tag}",
            self.name
        )
    }

    /// Checks that the event's tag is the `owner` of `id`. An event without a tag, or an id without
    /// an owner, passes.
    fn owned(&self, kind: &str, id: &str, owner: Option<&Owner>) -> Result<(), String> {
        let tag = self.tag();
        match owner {
            Some(owner) if tag.is_some() && tag != *owner => {
                Err(self.other_owner(kind, id, &tag, owner))
            }
            _ => Ok(()),
        }
    }
}

fn owner(value: &Value) -> Owner {
    value["subagentRunId"].as_str().map(str::to_owned)
}

/// The kind of the id's owner: a span and a message in it may share an id, and then have one owner.
fn owners_of(kind: &'static str) -> &'static str {
    match kind {
        SPAN => REASONING,
        kind => kind,
    }
}

impl Run {
    fn apply(&mut self, at: &At<'_>) -> Result<(), String> {
        match at.name {
            "TEXT_MESSAGE_START" => self.open(at, TEXT, at.field("messageId")),
            "TEXT_MESSAGE_CONTENT" => self.update(at, TEXT, &at.field("messageId")),
            "TEXT_MESSAGE_END" => self.close(at, TEXT, at.field("messageId")),
            "TOOL_CALL_START" => self.tool_call(at, &at.field("toolCallId")),
            "TOOL_CALL_ARGS" => self.update(at, CALL, &at.field("toolCallId")),
            "TOOL_CALL_END" => self.close(at, CALL, at.field("toolCallId")),
            "TOOL_CALL_RESULT" => {
                // The result has its own owner, since another agent may have executed the call.
                self.owners.insert((TEXT, at.field("messageId")), at.tag());
                Ok(())
            }
            "REASONING_START" => self.open(at, SPAN, at.field("messageId")),
            "REASONING_END" => self.close(at, SPAN, at.field("messageId")),
            "REASONING_MESSAGE_START" => self.open(at, REASONING, at.field("messageId")),
            "REASONING_MESSAGE_CONTENT" => self.update(at, REASONING, &at.field("messageId")),
            "REASONING_MESSAGE_END" => self.close(at, REASONING, at.field("messageId")),
            "REASONING_ENCRYPTED_VALUE" => {
                let id = at.field("entityId");
                let kinds = match at.field("subtype").as_str() {
                    "tool-call" => [CALL, CALL],
                    _ => [TEXT, REASONING],
                };
                let known = |kind: &&&str| self.owners.contains_key(&(**kind, id.clone()));
                let kind = kinds.iter().find(known).unwrap_or(&kinds[1]);
                at.owned(kind, &id, self.owners.get(&(*kind, id.clone())))
            }
            "ACTIVITY_SNAPSHOT" => {
                // A snapshot that does not replace keeps an existing activity and its owner.
                let id = (ACTIVITY, at.field("messageId"));
                if at.event["replace"] != false || !self.owners.contains_key(&id) {
                    self.owners.insert(id, at.tag());
                }
                Ok(())
            }
            "ACTIVITY_DELTA" => {
                let id = at.field("messageId");
                at.owned(ACTIVITY, &id, self.owners.get(&(ACTIVITY, id.clone())))
            }
            "MESSAGES_SNAPSHOT" => {
                self.seed(&at.event["messages"], true);
                Ok(())
            }
            "STEP_STARTED" => match self.open_steps.insert((at.field("stepName"), at.tag())) {
                true => Ok(()),
                false => Err(at.already_open(STEP, &at.field("stepName"))),
            },
            "STEP_FINISHED" => self.step_finished(at, &at.field("stepName")),
            "SUBAGENT_STARTED" => self.subagent_started(at, at.field("subagentRunId")),
            "SUBAGENT_FINISHED" | "SUBAGENT_ERROR" => {
                let id = at.field("subagentRunId");
                if !self.open.remove(&(SUBAGENT, id.clone())) {
                    return Err(at.not_open(SUBAGENT, &id));
                }
                self.closed_subagents.insert(id);
                Ok(())
            }
            // Other events neither open nor continue an id.
            _ => Ok(()),
        }
    }

    fn open(&mut self, at: &At<'_>, kind: &'static str, id: String) -> Result<(), String> {
        if self.open.contains(&(kind, id.clone())) {
            return Err(at.already_open(kind, &id));
        }
        let key = (owners_of(kind), id.clone());
        at.owned(kind, &id, self.owners.get(&key))?;
        self.owners.entry(key).or_insert_with(|| at.tag());
        self.open.insert((kind, id));
        Ok(())
    }

    fn update(&self, at: &At<'_>, kind: &'static str, id: &str) -> Result<(), String> {
        if !self.open.contains(&(kind, id.to_owned())) {
            return Err(at.not_open(kind, id));
        }
        at.owned(kind, id, self.owners.get(&(owners_of(kind), id.to_owned())))
    }

    fn close(&mut self, at: &At<'_>, kind: &'static str, id: String) -> Result<(), String> {
        self.update(at, kind, &id)?;
        self.open.remove(&(kind, id));
        Ok(())
    }

    fn tool_call(&mut self, at: &At<'_>, id: &str) -> Result<(), String> {
        let key = (CALL, id.to_owned());
        if self.open.contains(&key) {
            return Err(at.already_open(CALL, id));
        }
        // On the wire, a tool call is part of a message and has its owner; another tag is an error.
        let tag = at.tag();
        let parent = at.field("parentMessageId");
        let parent_owner = self.owners.get(&(TEXT, parent.clone()));
        at.owned(TEXT, &parent, parent_owner)?;
        let effective = match (&tag, parent_owner) {
            (None, Some(owner)) => owner.clone(),
            (tag, _) => (*tag).clone(),
        };
        match self.owners.get(&key) {
            // An untagged call without a known parent keeps its previous owner.
            Some(_) if tag.is_none() && parent_owner.is_none() => {}
            Some(owner) if *owner != effective => {
                return Err(at.other_owner(CALL, id, &effective, owner));
            }
            Some(_) => {}
            None => {
                self.owners.insert(key.clone(), effective);
            }
        }
        self.open.insert(key);
        Ok(())
    }

    fn step_finished(&mut self, at: &At<'_>, step: &str) -> Result<(), String> {
        let own = (step.to_owned(), at.tag());
        if self.open_steps.remove(&own) {
            return Ok(());
        }
        // A step with this name of another agent makes a wrong owner the likelier mistake.
        match self.open_steps.range((own.0, None)..).next() {
            Some((name, opener)) if name == step => {
                Err(at.other_owner(STEP, step, &at.tag(), opener))
            }
            _ => Err(at.not_open(STEP, step)),
        }
    }

    fn subagent_started(&mut self, at: &At<'_>, id: String) -> Result<(), String> {
        if self.open.contains(&(SUBAGENT, id.clone())) {
            return Err(at.already_open(SUBAGENT, &id));
        }
        if self.closed_subagents.contains(&id) {
            return Err(format!("{}: sub-agent id `{id}` was used before", at.name));
        }
        if let Some(parent) = at.event["parentSubagentRunId"].as_str()
            && !self.open.contains(&(SUBAGENT, parent.to_owned()))
            && !self.closed_subagents.contains(parent)
        {
            return Err(at.not_open(SUBAGENT, parent));
        }
        self.open.insert((SUBAGENT, id));
        Ok(())
    }

    fn finish(&self, event: &Value) -> Result<(), String> {
        let steps: BTreeSet<&str> = self
            .open_steps
            .iter()
            .map(|(step, _)| step.as_str())
            .collect();
        for kind in [STEP, TEXT, REASONING, SPAN, CALL, SUBAGENT] {
            let ids = self.open.iter().filter(|(other, _)| *other == kind);
            let mut ids: Vec<&str> = ids.map(|(_, id)| id.as_str()).collect();
            if kind == STEP {
                ids.extend(&steps);
            }
            if !ids.is_empty() {
                let ids = ids.join("`, `");
                return Err(format!("RUN_FINISHED: still open: {kind} `{ids}`"));
            }
        }
        let outcome = &event["outcome"];
        let interrupts = outcome["interrupts"].as_array();
        if outcome["type"] == "interrupt" && interrupts.is_none_or(Vec::is_empty) {
            return Err("RUN_FINISHED: interrupt outcome without interrupts".to_owned());
        }
        Ok(())
    }

    /// Records the owners of replayed messages. A snapshot replaces messages, and so their owners;
    /// history does not.
    fn seed(&mut self, messages: &Value, replace: bool) {
        let mut record = |kind, id: &Value, owner: Owner| {
            let key = (kind, id.as_str().unwrap_or_default().to_owned());
            if replace || !self.owners.contains_key(&key) {
                self.owners.insert(key, owner);
            }
        };
        for message in messages.as_array().into_iter().flatten() {
            let kind = match message["role"].as_str() {
                Some("reasoning") => REASONING,
                Some("activity") => ACTIVITY,
                _ => TEXT,
            };
            record(kind, &message["id"], owner(message));
            for call in message["toolCalls"].as_array().into_iter().flatten() {
                record(CALL, &call["id"], owner(message));
            }
        }
    }
}
