//! Tools with which a model reads and writes memories.

use super::{
    layer::Settings,
    turn::{cut, frames, owner_of},
};
use concentric_core::{
    Annotations, Context, Str,
    store::{Memory, Tenant},
};
use concentric_tools::{Tool, ToolError, tool_with_context};
use schemars::JsonSchema;
use serde::Deserialize;

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
struct Forget {
    /// The id of the memory.
    id: String,
}

pub(super) fn tools(settings: &Settings) -> [Tool; 3] {
    [remember(settings), recall(settings), forget(settings)]
}

/// The owner of a call's memories.
fn owner(settings: &Settings, context: &Context) -> Result<(Tenant, Str), ToolError> {
    let owner = owner_of(settings, context);
    let owner =
        owner.ok_or_else(|| ToolError::new("There are no memories in this conversation."))?;
    Ok((Tenant::of(context), owner))
}

fn remember(settings: &Settings) -> Tool {
    let settings = settings.clone();
    let mut annotations = Annotations::default();
    (annotations.destructive, annotations.open_world) = (false, false);
    let description = "Stores a fact for later conversations.";
    // A call that is repeated with its key replaces what it has stored.
    tool_with_context(
        "remember",
        description,
        move |args: Remember, context: Context| {
            let settings = settings.clone();
            async move {
                if args.text.trim().is_empty() {
                    return Err(ToolError::new("`text` must not be empty."));
                }
                let (tenant, owner) = owner(&settings, &context)?;
                let key = context.idempotency_key();
                let id = key.map_or_else(
                    || context.new_id("memory_"),
                    |key| Str::concat(["memory_", &key]),
                );
                let memory = Memory::new(id, cut(&args.text).to_owned(), context.now());
                settings.store.put(tenant, owner, memory).await?;
                Ok("The fact is stored.")
            }
        },
    )
    .annotations(annotations)
    .keyed()
}

fn recall(settings: &Settings) -> Tool {
    let settings = settings.clone();
    let description = "Returns facts of earlier conversations that match a query, with their ids.";
    tool_with_context(
        "recall",
        description,
        move |args: Recall, context: Context| {
            let settings = settings.clone();
            async move {
                let (tenant, owner) = owner(&settings, &context)?;
                let query = cut(&args.query).to_owned().into();
                let top = settings.top.max(1);
                let found = settings.store.search(tenant, owner, query, top).await?;
                let frames = frames(&found, top, settings.max_bytes, context.now());
                Ok::<_, ToolError>(match frames {
                    Some((text, _)) => text,
                    None => "No memory matches.".to_owned(),
                })
            }
        },
    )
    .read_only()
}

fn forget(settings: &Settings) -> Tool {
    let settings = settings.clone();
    let mut annotations = Annotations::default();
    (annotations.idempotent, annotations.open_world) = (true, false);
    let description = "Deletes a fact by its id.";
    tool_with_context(
        "forget",
        description,
        move |args: Forget, context: Context| {
            let settings = settings.clone();
            async move {
                let (tenant, owner) = owner(&settings, &context)?;
                let id = Some(args.id.into());
                match settings.store.forget(tenant, owner, id).await? {
                    0 => Err(ToolError::new("No memory has this id.")),
                    _ => Ok("The fact is deleted."),
                }
            }
        },
    )
    .annotations(annotations)
}
