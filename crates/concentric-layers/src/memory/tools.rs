//! Tools with which a model reads and writes memories.

use super::{
    layer::Settings,
    turn::{cut, frames, owner_of},
};
use concentric_core::{
    Annotations, Context, Str,
    store::{Memory, Tenant},
};
use concentric_tools::{IntoOutcome, Tool, ToolError, tool_with_context};
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use std::future::Future;

/// The maximum size of an id.
const MAX_ID: usize = 256;

#[derive(Deserialize, JsonSchema)]
struct Remember {
    /// One fact, in a sentence that can be understood without this conversation.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Recall {
    /// Words that the memories contain.
    query: String,
}

#[derive(Deserialize, JsonSchema)]
struct Update {
    /// The id of the memory.
    id: String,
    /// The fact as it is now, in a sentence that can be understood without this conversation.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Forget {
    /// The id of the memory.
    id: String,
}

/// A call of one of the tools.
struct Call {
    settings: Settings,
    context: Context,
    tenant: Tenant,
    owner: Str,
}

pub(super) fn tools(settings: &Settings) -> [Tool; 4] {
    let mut adds = Annotations::default();
    (adds.destructive, adds.open_world) = (false, false);
    let mut replaces = Annotations::default();
    (replaces.idempotent, replaces.open_world) = (true, false);
    let remember = "Stores a fact for later conversations.";
    let recall = "Returns facts of earlier conversations that match a query, with their ids.";
    let update = "Replaces a fact that has changed, by its id.";
    let forget = "Deletes a fact by its id.";
    [
        // A call that is repeated with its key replaces what it has stored.
        tool(settings, "remember", remember, Call::remember)
            .annotations(adds)
            .keyed(),
        tool(settings, "recall", recall, Call::recall).read_only(),
        tool(settings, "update", update, Call::update).annotations(replaces.clone()),
        tool(settings, "forget", forget, Call::forget).annotations(replaces),
    ]
}

fn tool<A, T, R>(
    settings: &Settings,
    name: &'static str,
    description: &'static str,
    run: impl Fn(Call, A) -> R + Copy + Send + Sync + 'static,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Future<Output = Result<T, ToolError>> + Send + 'static,
    Result<T, ToolError>: IntoOutcome,
{
    let settings = settings.clone();
    tool_with_context(name, description, move |args: A, context: Context| {
        let settings = settings.clone();
        async move {
            let owner = owner_of(&settings, &context);
            let none = || ToolError::new("There are no memories in this conversation.");
            let call = Call {
                owner: owner.ok_or_else(none)?,
                tenant: Tenant::of(&context),
                settings,
                context,
            };
            run(call, args).await
        }
    })
}

impl Call {
    async fn remember(self, args: Remember) -> Result<&'static str, ToolError> {
        let key = self.context.idempotency_key();
        let id = key.map_or_else(
            || self.context.new_id("memory_"),
            |key| Str::concat(["memory_", &key]),
        );
        self.put(id, &args.text).await?;
        Ok("The fact is stored.")
    }

    async fn recall(self, args: Recall) -> Result<String, ToolError> {
        let Settings {
            store,
            top,
            max_bytes,
            ..
        } = self.settings;
        let query = cut(&args.query).to_owned().into();
        let top = top.max(1);
        let found = store.search(self.tenant, self.owner, query, top).await?;
        let frames = frames(&found, top, max_bytes, self.context.now());
        Ok(match frames {
            Some((text, _)) => text,
            None => "No memory matches.".to_owned(),
        })
    }

    async fn update(self, args: Update) -> Result<&'static str, ToolError> {
        if args.id.is_empty() || args.id.len() > MAX_ID {
            return Err(ToolError::new("No memory has this id."));
        }
        self.put(args.id.into(), &args.text).await?;
        Ok("The fact is updated.")
    }

    async fn forget(self, args: Forget) -> Result<&'static str, ToolError> {
        let Settings { store, .. } = self.settings;
        let id = Some(args.id.into());
        match store.forget(self.tenant, self.owner, id).await? {
            0 => Err(ToolError::new("No memory has this id.")),
            _ => Ok("The fact is deleted."),
        }
    }

    async fn put(self, id: Str, text: &str) -> Result<(), ToolError> {
        if text.trim().is_empty() {
            return Err(ToolError::new("`text` must not be empty."));
        }
        let memory = Memory::new(id, cut(text).to_owned(), self.context.now());
        let Settings { store, .. } = self.settings;
        store.put(self.tenant, self.owner, memory).await?;
        Ok(())
    }
}
