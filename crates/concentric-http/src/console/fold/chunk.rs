//! The events of runs that `useChat` has started.

use super::{End, Event, Op, hidden, role, text};

impl Event {
    /// The changes of an event in the format of `useChat`.
    pub(super) fn chunk(self, content: bool) -> Vec<Op> {
        let shown = |text: String| if content { text } else { hidden(false) };
        let add = |key: Option<String>, kind, title: String, text: String| {
            vec![Op::Add {
                key,
                kind,
                title,
                text,
            }]
        };
        let key = |kind: &str| format!("{kind} {}", self.id);
        let append = |key: String| match content && self.delta != "" {
            true => vec![Op::Append {
                key,
                text: text(&self.delta),
            }],
            false => Vec::new(),
        };
        let result = |status: &str, text: String| {
            let title = format!("Result of {}: {status}", self.tool_call_id);
            add(None, "result", title, shown(text))
        };
        let used = self.message_metadata.get("usage").cloned();
        let end = |status, outcome: &str, kind| {
            let end = End {
                status,
                outcome: Some(outcome.to_owned()).filter(|it| !it.is_empty()),
                usage: used.into_iter().collect(),
            };
            let mut ops = add(
                None,
                kind,
                format!("Run {}", end.describe()),
                shown(self.error_text.clone()),
            );
            ops.push(Op::End(end));
            ops
        };
        match self.kind.as_str() {
            "start" => add(None, "event", "Run started".to_owned(), String::new()),
            "start-step" => add(None, "event", "Step".to_owned(), String::new()),
            "reset-step" | "data-reset" => add(
                None,
                "event",
                "The entries of the step are invalid".to_owned(),
                String::new(),
            ),
            "text-start" => add(
                Some(key("text")),
                "text",
                role("assistant"),
                hidden(content),
            ),
            "text-delta" => append(key("text")),
            "reasoning-start" => add(
                Some(key("reasoning")),
                "reasoning",
                "Reasoning".to_owned(),
                hidden(content),
            ),
            "reasoning-delta" => append(key("reasoning")),
            "tool-input-available" | "tool-input-error" => {
                let title = format!("Call of {} ({})", self.tool_name, self.tool_call_id);
                add(None, "call", title, shown(text(&self.input)))
            }
            "tool-output-available" => result("done", text(&self.output)),
            "tool-output-error" => result("failed", self.error_text.clone()),
            "tool-output-denied" => result("denied", String::new()),
            "tool-approval-request" => {
                let title = format!("Approval required for {}", self.tool_call_id);
                add(None, "event", title, shown(self.reason.clone()))
            }
            // The client has to reply, or to run the calls.
            "finish" if self.finish_reason == "tool-calls" => end("waiting", "", "event"),
            "finish" => end("ended", &self.finish_reason, "event"),
            "abort" => end("cancelled", &self.reason, "event"),
            "error" => end("failed", "", "error"),
            kind => match kind.strip_prefix("data-") {
                Some(name) => add(None, "event", name.to_owned(), shown(self.data.to_string())),
                None => Vec::new(),
            },
        }
    }
}
