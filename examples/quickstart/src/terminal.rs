//! Terminal output of a run: the text on stdout, all else dimmed on stderr.

use crate::provider::Provider;
use concentric::{Error, ErrorKind, Event, Finish, Interrupt, Outcome, message::ToolStatus};
use futures_core::Stream;
use futures_util::StreamExt;
use serde_json::Value;
use std::{
    env,
    error::Error as _,
    fmt::{Display, Write as _},
    io::{self, IsTerminal, Write},
    pin::pin,
};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Prints `body` as it streams, and returns its finish.
///
/// # Errors
///
/// Returns the error of the body or of stdout.
pub async fn show(body: impl Stream<Item = Result<Event, Error>>) -> Result<Finish, Error> {
    let mut body = pin!(body);
    // Whether the last line of the text is incomplete.
    let mut open = false;
    while let Some(event) = body.next().await {
        let text = match event {
            Ok(Event::TextDelta(text) | Event::RefusalDelta(text)) => {
                answer(&printable(&text))?;
                open = !text.ends_with('\n');
                continue;
            }
            Ok(Event::ToolCall(event)) => {
                let call = &event.call;
                format!("→ {} {}", call.name, line(call.arguments.as_str(), 100))
            }
            Ok(Event::ToolResult(result)) => {
                let text = result.outcome.content.text();
                let lines = match text.lines().count() {
                    0 | 1 => String::new(),
                    lines => format!(" ({lines} lines)"),
                };
                let status = match result.outcome.status {
                    ToolStatus::Done => "",
                    ToolStatus::Denied => "denied: ",
                    ToolStatus::Cancelled => "cancelled: ",
                    _ => "failed: ",
                };
                format!("← {}: {status}{}{lines}", result.name, line(&text, 100))
            }
            Ok(Event::Reset) => "(restarted)".to_owned(),
            Ok(Event::Finish(finish)) => {
                close(&mut open)?;
                return Ok(*finish);
            }
            Ok(_) => continue,
            Err(error) => {
                close(&mut open)?;
                return Err(error);
            }
        };
        close(&mut open)?;
        dim(&text);
    }
    close(&mut open)?;
    Err(Error::new(
        ErrorKind::Truncated,
        "the response ended before its finish",
    ))
}

/// Ends an incomplete line of the text.
fn close(open: &mut bool) -> Result<(), Error> {
    if std::mem::take(open) {
        answer("\n")?;
    }
    Ok(())
}

fn answer(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    // For example in `quickstart .. | head -1`.
    written.map_err(|e| Error::new(ErrorKind::Other, "stdout is closed").with_source(e))
}

/// Prints the outcome and the usage of a run.
pub fn summary(finish: &Finish) {
    match &finish.outcome {
        // Interrupts are printed separately.
        Outcome::Completed | Outcome::Interrupted => {}
        Outcome::Aborted { reason } => status(format_args!("The run was cancelled ({reason:?}).")),
        Outcome::Halted { reason } => status(format_args!("The run was halted: {reason}")),
        Outcome::StepLimit => status("The run has reached its step limit."),
        other => status(format_args!("The run ended with the outcome {other:?}.")),
    }
    // The usage may be unknown if a response was cut short.
    if let (Some(input), Some(output)) = (finish.usage.input_tokens(), finish.usage.output_tokens())
    {
        dim(&format!("{input} tokens in, {output} out"));
    }
}

/// Prints an interrupt, with the commands that reply to it.
pub fn interrupt(interrupt: &Interrupt, command: &str) {
    let known = |name| interrupt.metadata.get(name).map(Value::to_string);
    let arguments = visible(&known("arguments").unwrap_or_default());
    let message = interrupt.message.as_deref();
    let message = message.unwrap_or("The agent requests a decision:");
    let tool = interrupt.metadata.get("tool").and_then(Value::as_str);
    let id = shell(interrupt.id.as_str());
    status(format_args!(
        "\n{}\n\n  {} {arguments}\n\nReply with one of these commands, in this folder:\n",
        visible(message),
        visible(tool.unwrap_or_default()),
    ));
    status(format_args!("  {command} --approve {id}"));
    status(format_args!("  {command} --deny 'reason' {id}"));
    status(format_args!(
        "  {command} --edit {} {id}",
        shell(&arguments)
    ));
}

/// Escapes invisible characters as in JSON, so that an approver sees what will run.
fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for c in text.chars() {
        push_visible(&mut seen, c);
    }
    seen
}

/// Appends `c`, or its JSON escape if it is invisible. Returns whether it is visible.
pub(crate) fn push_visible(text: &mut String, c: char) -> bool {
    // Characters that reverse or hide the text around them.
    let hides = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if !c.is_control() && !hides {
        text.push(c);
        return true;
    }
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
    false
}

/// Quotes a text as one word of a command line.
fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", visible(text).replace('\'', r"'\''"))
}

/// Prints an error with its causes, and a hint if there is one.
pub fn error(error: &Error) {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    status(format_args!("Error: {}", line(&text, 600)));
    let Some(provider) = error.provider() else {
        return;
    };
    let named = Provider::all()
        .flatten()
        .find(|named| provider.contains(named.name));
    let Some(used) = named.or_else(|| Provider::chosen().ok().flatten()) else {
        return;
    };
    let (key, address, model) = (
        used.key_variable,
        used.address_variable,
        used.model_variable,
    );
    match error.kind() {
        ErrorKind::Authentication => status(format_args!(
            "Check that {key} is correct and valid for this server."
        )),
        ErrorKind::Connection => status(format_args!(
            "Check that the server is running and {address} is correct."
        )),
        ErrorKind::NotFound => status(format_args!(
            "Check that {model} and {address} are correct."
        )),
        _ => {}
    }
}

/// Writes a line to stderr.
pub fn status(text: impl Display) {
    // Errors are ignored: if stderr is closed, they cannot be reported.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a line of model output to stderr, dimmed.
pub fn note(text: &str) {
    dim(&printable(text));
}

/// Writes model output to stdout.
///
/// # Errors
///
/// Returns an error if stdout is closed.
pub fn print(text: &str) -> Result<(), Error> {
    answer(&printable(text))
}

fn dim(text: &str) {
    let plain = !io::stderr().is_terminal() || env::var_os("NO_COLOR").is_some();
    if plain {
        status(text);
    } else {
        status(format_args!("\x1b[2m{text}\x1b[0m"));
    }
}

/// Removes the control characters from a text, so that it cannot control the terminal.
fn printable(text: &str) -> String {
    let text = text.chars();
    text.filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

/// Returns the first `most` characters of a text, on one line.
fn line(text: &str, most: usize) -> String {
    let mut words = text.split_whitespace().map(printable);
    let mut line = words.next().unwrap_or_default();
    for word in words {
        line.push(' ');
        line.push_str(&word);
        if line.len() > 4 * most {
            break;
        }
    }
    match line.char_indices().nth(most) {
        Some((end, _)) => line.get(..end).unwrap_or_default().to_owned() + "…",
        None => line,
    }
}

/// Logs to stderr as `RUST_LOG` specifies, for example `tower_http=debug`; the default is
/// `default`.
pub fn log(default: &str) {
    let wanted = env::var("RUST_LOG").unwrap_or_else(|_| default.to_owned());
    let targets: Targets = wanted.parse().unwrap_or_default();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // Fails if a subscriber is installed already, which is fine.
    let _ = tracing_subscriber::registry()
        .with(lines)
        .with(targets)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approval_text_is_visible_and_can_be_pasted() {
        let hidden = "a\u{202e}b\u{1b}[0m\u{85}é\u{e0041}";
        assert_eq!(visible(hidden), r"a\u202eb\u001b[0m\u0085é\udb40\udc41");
        assert_eq!(shell("msg_1/0/call_1"), "msg_1/0/call_1");
        assert_eq!(shell("$(rm x); 'y'"), r"'$(rm x); '\''y'\'''");
        assert_eq!(shell(""), "''");
    }
}
