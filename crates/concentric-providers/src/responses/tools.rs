//! Calls of functions and of tools that the service defines.

use super::items::text;
use concentric_core::Str;
use serde_json::{Value, json};

/// The tool of an item type, if the service executes it.
fn hosted(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "web_search_call" => "web_search",
        "file_search_call" => "file_search",
        "code_interpreter_call" => "code_interpreter",
        "mcp_call" => "mcp",
        "x_search_call" => "x_search",
        _ => return None,
    })
}

/// The tool of an item type, if the service defines it and the client executes it.
fn client_side(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "local_shell_call" => "local_shell",
        // Executed by the service if the item has a container environment.
        "shell_call" => "shell",
        "apply_patch_call" => "apply_patch",
        _ => return None,
    })
}

/// Whether the service executes the tool of an item type.
pub(super) fn is_hosted(type_: &str) -> bool {
    hosted(type_).is_some()
}

/// The name of the tool that an item calls, if it is a call.
pub(super) fn call_name(item: &Value) -> Option<Str> {
    let name = text(item, "name").map(Str::from);
    match text(item, "type")? {
        "function_call" | "custom_tool_call" => Some(name.unwrap_or_default()),
        type_ => {
            let tool = hosted(type_).or_else(|| client_side(type_))?;
            Some(name.unwrap_or_else(|| Str::from_static(tool)))
        }
    }
}

pub(super) fn call_id(item: &Value) -> Option<&str> {
    call_name(item)?;
    text(item, "call_id").or_else(|| text(item, "id"))
}

/// The arguments of the call in an item.
pub(super) fn call_arguments(item: &Value) -> Option<String> {
    let field = |name: &str| item.get(name).filter(|value| !value.is_null());
    let arguments = field("arguments").or_else(|| field("input"));
    let arguments = arguments
        .or_else(|| field("action"))
        .or_else(|| field("operation"));
    match arguments {
        Some(Value::String(text)) => Some(text.clone()),
        Some(value) => Some(value.to_string()),
        None => {
            let named = ["queries", "code"].iter();
            let mut named = named.filter_map(|name| Some((*name, field(name)?)));
            named
                .next()
                .map(|(name, value)| json!({ name: value }).to_string())
        }
    }
}
