//! The calls of tools that are not functions.

/// The tool that a type of item calls on the service's own side.
pub(super) fn name(type_: &str) -> Option<&'static str> {
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
pub(super) fn client_name(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "local_shell_call" => "local_shell",
        // Or on the service's, by its environment.
        "shell_call" => "shell",
        "apply_patch_call" => "apply_patch",
        _ => return None,
    })
}
