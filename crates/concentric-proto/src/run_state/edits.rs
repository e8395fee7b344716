use crate::{
    options::{ChatOptions, System},
    spec::ToolSpecs,
    text::Str,
    transcript::{HistoryError, Transcript, Turn},
};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, sync::Arc};

/// The lasting edits of a run: changes of its request that all later steps have.
///
/// They are stored with the run's state, so a run that is resumed in another process keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunEdits {
    /// The system text that replaces that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<System>,
    /// The names of the tools that are offered, of those of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered: Option<Arc<[Str]>>,
    /// The options that replace those of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Arc<ChatOptions>>,
    /// The number of turns by which the conversation was shortened; negative if it was extended.
    #[serde(skip_serializing_if = "is_zero")]
    pub shortened_by: i64,
    // In the order of application. They become part of the run's conversation, which is stored.
    #[serde(skip)]
    rewrites: Vec<Rewrite>,
}

/// The conversation that replaces `of`.
#[derive(Clone, Debug, PartialEq)]
struct Rewrite {
    of: Transcript,
    to: Transcript,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(turns: &i64) -> bool {
    *turns == 0
}

impl RunEdits {
    /// Replaces the first `turns` turns of `transcript` by `by`, and keeps the result as an edit of
    /// the run's conversation. The user's last message is kept, after `by`.
    ///
    /// # Errors
    ///
    /// [`HistoryError::TooShort`]: there are fewer turns.
    pub fn rewrite(
        &mut self,
        transcript: &mut Transcript,
        turns: usize,
        by: impl IntoIterator<Item = Turn>,
    ) -> Result<(), HistoryError> {
        let to = transcript.rewrite(turns, by)?;
        let of = std::mem::replace(transcript, to.clone());
        self.rewrites.push(Rewrite { of, to });
        Ok(())
    }

    /// Takes the rewrites, and returns what they make of `transcript`; `None` if they rewrite
    /// another conversation.
    pub(crate) fn take_rewrites(&mut self, transcript: &Transcript) -> Option<Transcript> {
        let rewrites = self.rewrites.drain(..);
        rewrites
            .into_iter()
            .try_fold(transcript.clone(), |now, Rewrite { of, to }| {
                (now == of).then_some(to)
            })
    }

    /// Applies the edits to the system text, tools and options of a request.
    pub fn apply(
        &self,
        system: &mut System,
        tools: &mut ToolSpecs,
        options: &mut Arc<ChatOptions>,
    ) {
        if let Some(edited) = &self.system {
            system.clone_from(edited);
        }
        if let Some(offered) = &self.offered {
            let offered: HashSet<&Str> = offered.iter().collect();
            tools.retain(|tool| offered.contains(&tool.name));
        }
        if let Some(edited) = &self.options {
            options.clone_from(edited);
        }
    }

    /// Adds `later` edits, which replace earlier ones of the same part, and rewrite the conversation
    /// that the earlier ones result in.
    pub fn extend(&mut self, later: Self) {
        self.system = later.system.or(self.system.take());
        self.offered = later.offered.or(self.offered.take());
        self.options = later.options.or(self.options.take());
        self.shortened_by = self.shortened_by.saturating_add(later.shortened_by);
        self.rewrites.extend(later.rewrites);
    }
}
