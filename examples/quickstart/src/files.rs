//! Tools over the files of one folder.
//!
//! [`tools`] only read; [`write_file`] writes, and should be behind a gate. None can leave the
//! folder: all links of a requested path are resolved, and a path outside the folder is refused.
//! Hidden files are refused too, since they often contain keys (`.env`, `.ssh`, `.git`).
//!
//! The model reads a name as it is, unless that name could be mistaken for another: a name that is
//! not UTF-8, or that contains control or invisible characters, `"`, `\` or `:`, is escaped as in
//! JSON and quoted (a byte that is not UTF-8 as `\xff`). A path that the model sends is never
//! unescaped, so a name that is not UTF-8 can be listed and searched, but not read by name.
//!
//! The path is checked before it is opened. If another process can write to the folder, it may
//! swap in a link between the two; a service with that risk opens files with `openat2` instead.

use crate::terminal::push_visible;
use concentric::{
    Context, Error, ErrorKind,
    call::Annotations,
    tools::{Tool, ToolError, Toolset, blocking_tool_with_context},
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Creates tools that list, search and read the files of `folder`.
///
/// # Errors
///
/// [`ErrorKind::Configuration`] if `folder` is not a folder that can be opened.
pub fn tools(folder: impl AsRef<Path>) -> Result<Toolset, Error> {
    let folder = open(folder.as_ref())?;
    Ok(Toolset::new()
        .tool(tool(
            "list_files",
            "Lists the files and folders of the current folder, or of one below it. Leaves out \
             hidden ones, links, `node_modules` and `target`.",
            &folder,
            Folder::list,
        )
        .read_only())
        .tool(tool(
            "search_files",
            "Finds the lines that contain a text, ignoring case, with path and line number. Leaves \
             out hidden files, links, `node_modules` and `target`.",
            &folder,
            Folder::search,
        )
        .read_only())
        .tool(tool(
            "read_file",
            "Reads a text file, or some of its lines. Only the first 4 MiB can be read.",
            &folder,
            Folder::read,
        )
        .read_only()))
}

/// Creates a tool that writes files of `folder`.
///
/// It is idempotent, so a call that a crash interrupted is run again. A reader sees the whole old
/// text or the whole new one.
///
/// # Errors
///
/// [`ErrorKind::Configuration`] if `folder` is not a folder that can be opened.
pub fn write_file(folder: impl AsRef<Path>) -> Result<Tool, Error> {
    let folder = open(folder.as_ref())?;
    let mut effect = Annotations::default();
    effect.idempotent = true;
    effect.open_world = false;
    let description = "Writes a text to a file. Replaces what the file contained.";
    Ok(tool("write_file", description, &folder, Folder::write).annotations(effect))
}

fn open(folder: &Path) -> Result<Arc<Folder>, Error> {
    Folder::open(folder).map(Arc::new).map_err(|e| {
        let message = format!("the folder {} cannot be opened", folder.display());
        Error::new(ErrorKind::Configuration, message).with_source(e)
    })
}

/// Creates a tool from a method. File operations block, so it runs on tokio's blocking threads.
fn tool<A>(
    name: &'static str,
    description: &'static str,
    folder: &Arc<Folder>,
    method: fn(&Folder, &A, &Context) -> Result<String, ToolError>,
) -> Tool
where
    A: for<'de> Deserialize<'de> + JsonSchema + Send + 'static,
{
    let folder = Arc::clone(folder);
    blocking_tool_with_context(name, description, move |arguments: A, context| {
        method(&folder, &arguments, &context)
    })
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListFiles {
    /// The folder, relative to the current one. The default is the current folder.
    #[serde(default)]
    pub path: Option<String>,
    /// How many levels of folders to list; the default is 2.
    #[serde(default)]
    #[schemars(range(min = 1, max = 8))]
    pub depth: Option<usize>,
}

/// Arguments of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SearchFiles {
    /// The text to find: plain text, not a pattern.
    #[schemars(length(min = 1, max = 500))]
    pub text: String,
    /// The file or folder to search. The default is the current folder.
    #[serde(default)]
    pub path: Option<String>,
    /// The most lines to return; the default is 50.
    #[serde(default)]
    #[schemars(range(min = 1, max = 500))]
    pub max_hits: Option<usize>,
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ReadFile {
    /// The file, relative to the current folder.
    pub path: String,
    /// The first line to read, from 1.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub first_line: Option<usize>,
    /// How many lines to read; the default is 400.
    #[serde(default)]
    #[schemars(range(min = 1, max = 2000))]
    pub lines: Option<usize>,
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct WriteFile {
    /// The file, relative to the current folder; its own folder must exist.
    pub path: String,
    /// The whole new text of the file.
    #[schemars(length(max = 100_000))]
    pub text: String,
}

/// Folders of generated files, which are not listed or searched.
const SKIPPED: [&str; 2] = ["node_modules", "target"];
/// The most entries that a list shows.
const MAX_ENTRIES: usize = 500;
/// The most levels of folders that a search enters.
const MAX_DEPTH: usize = 64;
/// The most files that a search reads.
const MAX_SEARCHED: usize = 10_000;
/// The most bytes of a file that are read; larger files are not searched.
const MAX_FILE: usize = 4 * 1024 * 1024;
/// The most bytes of a line that a search shows.
const MAX_LINE: usize = 400;
/// The most bytes of text that one call returns.
const MAX_TEXT: usize = 48 * 1024;

/// A folder that no path leads out of.
#[derive(Debug)]
struct Folder {
    /// Canonical.
    root: PathBuf,
}

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        let root = path.canonicalize()?;
        if !root.is_dir() {
            let message = format!("{} is not a folder", path.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
        }
        Ok(Self { root })
    }

    fn list(&self, args: &ListFiles, context: &Context) -> Result<String, ToolError> {
        let path = self.find(args.path.as_deref().unwrap_or("."))?;
        if !path.is_dir() {
            return Err(ToolError::new(
                "That is a file, not a folder. Use read_file.",
            ));
        }
        let mut text = String::new();
        let mut entries = 0;
        let mut see = |entry: Entry<'_>| {
            if entries == MAX_ENTRIES {
                let _ = writeln!(text, "Only the first {MAX_ENTRIES} entries are listed.");
                return Walk::Stop;
            }
            entries += 1;
            let _ = match entry {
                Entry::File(path, 1) => writeln!(text, "{} (1 byte)", self.name(path)),
                Entry::File(path, size) => writeln!(text, "{} ({size} bytes)", self.name(path)),
                Entry::Folder(path) | Entry::Deep(path) => writeln!(text, "{}/", self.name(path)),
                Entry::Unreadable(path) => {
                    writeln!(text, "The folder {} could not be read.", self.name(path))
                }
            };
            Walk::Continue
        };
        self.walk(&path, args.depth.unwrap_or(2), context, &mut see)
            .map_err(unreadable)?;
        not_cancelled(context)?;
        if text.is_empty() {
            text.push_str("No visible files: the folder is empty, or all of it is left out.");
        }
        Ok(text)
    }

    fn search(&self, args: &SearchFiles, context: &Context) -> Result<String, ToolError> {
        let path = self.find(args.path.as_deref().unwrap_or("."))?;
        if !path.is_dir() && !path.is_file() {
            // A pipe or a device might never end.
            return Err(ToolError::new("That is not a regular file."));
        }
        let wanted = args.text.to_lowercase();
        let most = args.max_hits.unwrap_or(50);
        let (mut text, mut hits) = (String::new(), 0);
        let (mut searched, mut files_left, mut folders_left) = (0, 0, 0);
        let mut see = |entry: Entry<'_>| {
            let (path, size) = match entry {
                Entry::File(path, size) => (path, size),
                Entry::Folder(_) => return Walk::Continue,
                Entry::Deep(_) | Entry::Unreadable(_) => {
                    folders_left += 1;
                    return Walk::Continue;
                }
            };
            if searched + files_left == MAX_SEARCHED {
                let _ = writeln!(
                    text,
                    "Only the first {MAX_SEARCHED} files were searched. Search in one folder."
                );
                return Walk::Stop;
            }
            let content = match size <= MAX_FILE as u64 {
                true => read_text(path).ok().filter(|content| content.is_whole),
                false => None,
            };
            let Some(content) = content else {
                files_left += 1;
                return Walk::Continue;
            };
            searched += 1;
            for (number, line) in (1..).zip(content.text.lines()) {
                if !line.to_lowercase().contains(&wanted) {
                    continue;
                }
                if hits == most || text.len() >= MAX_TEXT {
                    text.push_str("There are more lines. Search for a longer text.\n");
                    return Walk::Stop;
                }
                hits += 1;
                let line = line.trim();
                let shown = cut(line, MAX_LINE);
                let rest = if shown.len() < line.len() { "…" } else { "" };
                let _ = writeln!(text, "{}:{number}: {shown}{rest}", self.name(path));
            }
            Walk::Continue
        };
        self.walk(&path, MAX_DEPTH, context, &mut see)
            .map_err(unreadable)?;
        not_cancelled(context)?;
        if hits == 0 {
            let files = plural(searched, "searched file");
            let none = format!("No line of {files} contains {:?}.\n", args.text);
            text.insert_str(0, &none);
        }
        for (left, what, why) in [
            (files_left, "file", "larger than 4 MiB or not text"),
            (folders_left, "folder", "not readable or nested too deep"),
        ] {
            if left > 0 {
                let were = if left == 1 { "was" } else { "were" };
                let what = plural(left, what);
                let _ = writeln!(text, "{what} {were} not searched: {why}.");
            }
        }
        Ok(text)
    }

    fn read(&self, args: &ReadFile, _: &Context) -> Result<String, ToolError> {
        let path = self.find(&args.path)?;
        let meta = path.metadata().map_err(unreadable)?;
        if meta.is_dir() {
            return Err(ToolError::new("That is a folder. Use list_files."));
        }
        if !meta.is_file() {
            // A pipe or a device might never end.
            return Err(ToolError::new("That is not a regular file."));
        }
        let content = read_text(&path)?;
        let total = content.text.lines().count();
        let first = args.first_line.unwrap_or(1).max(1);
        if first > total.max(1) {
            let lines = plural(total, "line");
            return Err(ToolError::new(match content.is_whole {
                true => format!("The file has only {lines}."),
                false => {
                    format!("Only the first {lines} can be read: the file is larger than 4 MiB.")
                }
            }));
        }
        if total == 0 {
            return Ok("The file is empty.".to_owned());
        }
        let mut text = String::new();
        let mut last = first - 1;
        for line in content
            .text
            .lines()
            .skip(first - 1)
            .take(args.lines.unwrap_or(400))
        {
            if text.len() + line.len() > MAX_TEXT {
                if text.is_empty() {
                    text.push_str(cut(line, MAX_TEXT));
                    text.push_str("…\n(The rest of this line is too long to be shown.)\n");
                    last += 1;
                }
                break;
            }
            text.push_str(line);
            text.push('\n');
            last += 1;
        }
        let name = self.name(&path);
        Ok(match content.is_whole {
            true => format!("{name}, lines {first} to {last} of {total}:\n{text}"),
            false => format!(
                "{name}, lines {first} to {last} of the first {total}. The file is larger than \
                 4 MiB, and only these {total} can be read:\n{text}"
            ),
        })
    }

    fn write(&self, args: &WriteFile, context: &Context) -> Result<String, ToolError> {
        let asked = Path::new(&args.path);
        // `Path` ignores a final `/` or `/.`, which name a folder.
        let name = asked
            .file_name()
            .filter(|name| name.to_str().is_some_and(|name| args.path.ends_with(name)));
        let Some(name) = name else {
            return Err(ToolError::new("The path must end with the file's name."));
        };
        if is_hidden(name) {
            return Err(ToolError::new("Hidden files cannot be written."));
        }
        // The file need not exist, but its folder must: no link in it leads out.
        let folder = asked.parent().and_then(Path::to_str).unwrap_or_default();
        let folder = self.find(folder)?;
        if !folder.is_dir() {
            return Err(ToolError::new("The file's folder is a file."));
        }
        let path = folder.join(name);
        // Of a link itself, not of its target.
        let old = match path.symlink_metadata() {
            Ok(old) if old.is_file() => Some(old),
            Ok(_) => return Err(ToolError::new("That is not a regular file.")),
            Err(_) => None,
        };
        // A concurrent reader sees the whole old text or the whole new one.
        let draft = folder.join(format!(".{}.tmp", context.new_id("write_")));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&draft)
            .and_then(|mut file| {
                file.write_all(args.text.as_bytes())?;
                if let Some(old) = old {
                    file.set_permissions(old.permissions())?;
                }
                file.sync_all()?;
                fs::rename(&draft, &path)
            });
        if let Err(error) = written {
            let _ = fs::remove_file(&draft);
            return Err(ToolError::new("The file could not be written.").with_source(error));
        }
        let bytes = plural(args.text.len(), "byte");
        Ok(format!("Wrote {bytes} to {}.", self.name(&path)))
    }

    /// Returns the canonical path of a file or folder that the model names, if it is below the
    /// root.
    fn find(&self, path: &str) -> Result<PathBuf, ToolError> {
        let asked = Path::new(path);
        for component in asked.components() {
            match component {
                Component::Normal(_) | Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(ToolError::new(
                        "The path must be relative to the current folder, without `..`.",
                    ));
                }
            }
        }
        let found = self.root.join(asked).canonicalize().map_err(unreadable)?;
        // All links are resolved: this is the real place of the file.
        let Ok(below) = found.strip_prefix(&self.root) else {
            return Err(ToolError::new("The path leads out of the current folder."));
        };
        if below.components().any(|part| is_hidden(part.as_os_str())) {
            return Err(ToolError::new("Hidden files are not shown."));
        }
        Ok(found)
    }

    /// Returns the name of a path for the model. No two paths have the same name.
    fn name(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut name = String::new();
        let mut plain = true;
        for part in below.components() {
            if !name.is_empty() {
                name.push('/');
            }
            for chunk in part.as_os_str().as_encoded_bytes().utf8_chunks() {
                for c in chunk.valid().chars() {
                    // `:` ends the name in a search result.
                    plain &= !matches!(c, '"' | '\\' | ':');
                    if matches!(c, '"' | '\\') {
                        name.push('\\');
                    }
                    plain &= push_visible(&mut name, c);
                }
                for byte in chunk.invalid() {
                    plain = false;
                    let _ = write!(name, "\\x{byte:02x}");
                }
            }
        }
        if plain && name.trim() == name {
            return name;
        }
        format!("\"{name}\"")
    }

    /// Calls `see` with each file and folder below `path`, sorted by name.
    ///
    /// Links are left out: they may lead anywhere, also back.
    fn walk(
        &self,
        path: &Path,
        depth: usize,
        context: &Context,
        see: &mut dyn FnMut(Entry<'_>) -> Walk,
    ) -> io::Result<Walk> {
        if path.is_file() {
            return Ok(see(Entry::File(path, path.metadata()?.len())));
        }
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            // A cancelled run does not need the result.
            if context.is_cancelled() {
                return Ok(Walk::Stop);
            }
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let name = entry.file_name();
            let is_generated = kind.is_dir() && SKIPPED.iter().any(|skipped| name == *skipped);
            if is_hidden(&name) || is_generated {
                continue;
            }
            let path = entry.path();
            let mut then = Walk::Continue;
            if kind.is_dir() {
                then = see(match depth {
                    0 | 1 => Entry::Deep(&path),
                    _ => Entry::Folder(&path),
                });
                if depth > 1 && matches!(then, Walk::Continue) {
                    // One folder that cannot be read does not end the walk.
                    then = match self.walk(&path, depth - 1, context, see) {
                        Ok(then) => then,
                        Err(_) => see(Entry::Unreadable(&path)),
                    };
                }
            } else if kind.is_file()
                && let Ok(meta) = entry.metadata()
            {
                then = see(Entry::File(&path, meta.len()));
            }
            if matches!(then, Walk::Stop) {
                return Ok(Walk::Stop);
            }
        }
        Ok(Walk::Continue)
    }
}

/// An entry of a walk.
#[derive(Clone, Copy, Debug)]
enum Entry<'a> {
    /// A file, and its size in bytes.
    File(&'a Path, u64),
    /// A folder that the walk enters next.
    Folder(&'a Path),
    /// A folder that the walk does not enter: it is at the walk's depth.
    Deep(&'a Path),
    /// A folder that could not be read.
    Unreadable(&'a Path),
}

/// Whether to continue a walk.
#[derive(Clone, Copy, Debug)]
enum Walk {
    Continue,
    Stop,
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// A partial result must not be read as a whole one.
fn not_cancelled(context: &Context) -> Result<(), ToolError> {
    match context.is_cancelled() {
        true => Err(ToolError::new("The call was cancelled before it ended.")),
        false => Ok(()),
    }
}

/// The text of a file.
struct Content {
    text: String,
    /// Whether this is all of the file; otherwise the whole lines of its first `MAX_FILE` bytes.
    is_whole: bool,
}

fn read_text(path: &Path) -> Result<Content, ToolError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.contains(&0) {
        return Err(ToolError::new(
            "The file is binary, and cannot be read as text.",
        ));
    }
    let is_whole = bytes.len() <= MAX_FILE;
    if !is_whole {
        bytes.truncate(MAX_FILE);
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
        }
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if !is_whole && error.utf8_error().error_len().is_none() => {
            // The limit fell within a character.
            let end = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(end);
            String::from_utf8(bytes).map_err(ToolError::from)?
        }
        Err(_) => {
            return Err(ToolError::new(
                "The file is not UTF-8 text, and cannot be read.",
            ));
        }
    };
    Ok(Content { text, is_whole })
}

/// Returns the error for the model, which contains no path of the machine.
fn unreadable(error: io::Error) -> ToolError {
    let message = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "There is no such file or folder. Use list_files to see the files."
        }
        io::ErrorKind::PermissionDenied => "The file may not be read.",
        _ => "The file could not be read.",
    };
    ToolError::new(message).with_source(error)
}

/// Returns the first `most` bytes of a line.
fn cut(line: &str, most: usize) -> &str {
    line.get(..line.floor_char_boundary(most)).unwrap_or(line)
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
