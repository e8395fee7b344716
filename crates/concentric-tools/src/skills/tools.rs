use super::{
    SkillError,
    active::{Load, activate},
    catalogue::Catalogue,
    files::MAX_FILE_BYTES,
};
use crate::{Tool, ToolError, blocking_tool};
use concentric_core::{Str, ToolCall, ToolOutcome, ToolSpec};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{convert::Infallible, fmt::Write, future::ready, sync::Arc};
use tower::service_fn;

/// The limit of file or skill names in a result.
const MAX_LISTED: usize = 100;

/// Creates the tool that loads a skill.
pub(super) fn load_tool(catalogue: Arc<Catalogue>) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "The skill's name." },
        },
        "required": ["name"],
    });
    let description = "Loads a skill: returns its instructions, and makes its tools available.";
    let spec = ToolSpec::new(catalogue.load_tool.clone(), description, schema);
    let answer = move |call| ready(Ok::<_, Infallible>(load(&catalogue, &call)));
    // The texts were limited when the skill was read.
    Tool::new(spec, service_fn(answer))
        .read_only()
        .revealing()
        .max_result_bytes(usize::MAX)
}

fn load(catalogue: &Catalogue, call: &ToolCall) -> ToolOutcome {
    let Ok(Load { name }) = serde_json::from_str(call.arguments().as_str()) else {
        return ToolOutcome::failed("The arguments are not `{\"name\": \"…\"}`.");
    };
    let Some(skill) = catalogue.skills.get(&name) else {
        return ToolOutcome::failed(unknown(catalogue, &name));
    };
    let is_new = match activate(&call.context, &catalogue.load_tool, &skill.name) {
        Ok(is_new) => is_new,
        Err(error) => {
            tracing::error!(%error, "activating a skill failed");
            return ToolOutcome::failed("The skill could not be loaded.");
        }
    };
    let mut text = match catalogue.in_system {
        true => format!("The skill `{name}` is active. Its instructions are in the system prompt."),
        false => format!("The skill `{name}` is active.\n\n{}", skill.instructions),
    };
    if !skill.files.is_empty() {
        let read = &catalogue.read_tool;
        let _ = write!(text, "\n\nFiles, readable with `{read}`:");
        list(&mut text, skill.files());
    }
    let tools = catalogue.hidden.iter();
    let tools: Vec<_> = tools.filter(|(_, by)| by.contains(&name)).collect();
    if !tools.is_empty() {
        text.push_str("\n\nTools, available from the next step:");
        list(&mut text, tools.iter().map(|(tool, _)| *tool));
    }
    let outcome = ToolOutcome::done(text).with_data(json!({ "skill": name }));
    // Only the first time, so that repeated loads reach the step limit.
    match is_new {
        true => outcome.free_of_charge(),
        false => outcome,
    }
}

#[derive(Deserialize, JsonSchema)]
struct ReadFile {
    /// The skill's name.
    skill: String,
    /// The file's path, as listed by the skill.
    path: String,
}

/// Creates the tool that reads a skill's files; `None` if there are none.
pub(super) fn read_tool(catalogue: Arc<Catalogue>) -> Option<Tool> {
    if catalogue
        .skills
        .values()
        .all(|skill| skill.files.is_empty())
    {
        return None;
    }
    let name = catalogue.read_tool.clone();
    let tool = blocking_tool(name, "Reads a file of a skill.", move |file: ReadFile| {
        read(&catalogue, &file)
    });
    let tool = tool.read_only().revealing();
    Some(tool.max_result_bytes(MAX_FILE_BYTES))
}

fn read(catalogue: &Catalogue, file: &ReadFile) -> Result<Str, ToolError> {
    let ReadFile { skill, path } = file;
    let Some(of) = catalogue.skills.get(skill.as_str()) else {
        return Err(ToolError::new(unknown(catalogue, skill)));
    };
    let failure = match of.read(path) {
        Some(Ok(text)) if text.is_empty() => return Ok(Str::from_static("The file is empty.")),
        Some(Ok(text)) => return Ok(text),
        Some(Err(failure)) => failure,
        None => {
            let mut text = format!("The skill `{skill}` has no file `{path}`. Available files:");
            list(&mut text, of.files());
            return Err(ToolError::new(text));
        }
    };
    let why = match &failure {
        SkillError::TooLarge { limit } => format!("has more than {limit} bytes"),
        SkillError::NotUtf8 => "is not UTF-8 text".to_owned(),
        _ => "could not be read".to_owned(),
    };
    let error = ToolError::new(format!("The file `{path}` {why}."));
    Err(error.with_source(failure))
}

fn unknown(catalogue: &Catalogue, name: &str) -> String {
    let mut text = format!("There is no skill `{name}`. Available skills:");
    list(&mut text, catalogue.skills.keys());
    text
}

fn list<'a>(text: &mut String, names: impl ExactSizeIterator<Item = &'a Str>) {
    let more = names.len().saturating_sub(MAX_LISTED);
    for name in names.take(MAX_LISTED) {
        let _ = write!(text, "\n- {name}");
    }
    if more > 0 {
        let _ = write!(text, "\n- and {more} more");
    }
}
