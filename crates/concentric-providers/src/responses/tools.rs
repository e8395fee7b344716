//! Calls of functions and of tools that the service defines.

use super::items::text;
use concentric_core::Str;
use serde_json::{Value, json};

/// The item types of calls of tools that the service defines, their tools, and whether the service
/// executes them.
const TOOLS: [(&str, &str, bool); 8] = [
    ("web_search_call", "web_search", true),
    ("file_search_call", "file_search", true),
    ("code_interpreter_call", "code_interpreter", true),
    ("mcp_call", "mcp", true),
    ("x_search_call", "x_search", true),
    ("local_shell_call", "local_shell", false),
    // Executed by the service if the item has a container environment.
    ("shell_call", "shell", false),
    ("apply_patch_call", "apply_patch", false),
];

/// Whether the service executes the tool of an item type.
pub(super) fn is_hosted(type_: &str) -> bool {
    TOOLS.iter().any(|(of, _, hosted)| *of == type_ && *hosted)
}

/// The name of the tool that an item calls, if it is a call.
pub(super) fn call_name(item: &Value) -> Option<Str> {
    let name = text(item, "name").map(Str::from);
    match text(item, "type")? {
        "function_call" | "custom_tool_call" => Some(name.unwrap_or_default()),
        type_ => {
            let (_, tool, _) = TOOLS.iter().find(|(of, ..)| *of == type_)?;
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
    let field = |name: &&str| item.get(name).filter(|value| !value.is_null());
    let whole = ["arguments", "input", "action", "operation"];
    match whole.iter().find_map(field) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(value) => Some(value.to_string()),
        None => {
            let mut named = ["queries", "code"].iter();
            named.find_map(|name| Some(json!({ *name: field(name)? }).to_string()))
        }
    }
}
