//! The calls of tools: of functions, and of tools of the service's making.

use super::items::text;
use concentric_core::Str;
use serde_json::{Value, json};

/// The tool that a type of item calls on the service's own side.
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

/// The tool of the service's making that a type of item calls on the client's side.
fn client_side(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "local_shell_call" => "local_shell",
        // Or on the service's, by its environment.
        "shell_call" => "shell",
        "apply_patch_call" => "apply_patch",
        _ => return None,
    })
}

/// Whether the service runs the tool that a type of item calls.
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

/// What an item calls its tool with.
pub(super) fn call_arguments(item: &Value) -> Option<String> {
    let field = |name: &str| item.get(name).filter(|value| !value.is_null());
    let said = field("arguments").or_else(|| field("input"));
    let said = said
        .or_else(|| field("action"))
        .or_else(|| field("operation"));
    match said {
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
