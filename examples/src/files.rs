//! Tools over the files of one folder.
//!
//! [`tools`] read, and nothing else; [`write_file`] writes, and wants a gate. None can leave the
//! folder: whatever path the model asks for is followed through all its links, and what lies outside
//! is refused. Hidden files are refused too, since that is where keys lie (`.env`, `.ssh`, `.git`).
//!
//! The path is checked before it is opened. If others can write to the folder meanwhile, a link may
//! be swapped in between; a service that has to stand that opens files with `openat2` instead.

use concentric::{
    Annotations, Context, Error, ErrorKind,
    tools::{Tool, ToolError, Toolset, blocking_tool_with_context},
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Makes tools that list, search and read the files of `folder`.
///
/// # Errors
///
/// There is no such folder.
pub fn tools(folder: impl AsRef<Path>) -> Result<Toolset, Error> {
    let folder = open(folder.as_ref())?;
    Ok(Toolset::new()
        .tool(tool(
            "list_files",
            "Lists the files and folders of the current folder, or of one below it.",
            &folder,
            Folder::list,
        )
        .read_only())
        .tool(tool(
            "search_files",
            "Finds the lines that contain a text, whatever their case, with path and line number.",
            &folder,
            Folder::search,
        )
        .read_only())
        .tool(tool(
            "read_file",
            "Reads a text file, or some of its lines.",
            &folder,
            Folder::read,
        )
        .read_only()))
}

/// Makes a tool that writes files of `folder`.
///
/// To write the same again changes nothing more, so a call that a crash cut short is run again. The
/// file is there as a whole, or not at all.
///
/// # Errors
///
/// There is no such folder.
pub fn write_file(folder: impl AsRef<Path>) -> Result<Tool, Error> {
    let folder = open(folder.as_ref())?;
    let mut effect = Annotations::default();
    effect.idempotent = true;
    effect.open_world = false;
    let description = "Writes a text to a file, in the place of what the file held before.";
    Ok(tool("write_file", description, &folder, Folder::write).annotations(effect))
}

fn open(folder: &Path) -> Result<Arc<Folder>, Error> {
    Folder::open(folder).map(Arc::new).map_err(|e| {
        let said = format!("the folder {} cannot be opened", folder.display());
        Error::new(ErrorKind::Configuration, said).with_source(e)
    })
}

/// A tool of a method: working on files blocks, so it runs on tokio's threads for that.
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

/// What `list_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListFiles {
    /// The folder, relative to the current one. The default is the current folder.
    #[serde(default)]
    pub path: Option<String>,
    /// How many levels of folders to look into; the default is 2.
    #[serde(default)]
    #[schemars(range(min = 1, max = 8))]
    pub depth: Option<usize>,
}

/// What `search_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SearchFiles {
    /// What to look for: plain text, not a pattern.
    #[schemars(length(min = 1, max = 500))]
    pub text: String,
    /// The file or folder to look in. The default is the current folder.
    #[serde(default)]
    pub path: Option<String>,
    /// How many lines to return at the most; the default is 50.
    #[serde(default)]
    #[schemars(range(min = 1, max = 500))]
    pub max_hits: Option<usize>,
}

/// What `read_file` takes.
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

/// What `write_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct WriteFile {
    /// The file, relative to the current folder; its own folder must be there.
    pub path: String,
    /// All that the file is to hold.
    #[schemars(length(max = 100_000))]
    pub text: String,
}

/// Folders that are made by tools, and tell nobody anything.
const SKIPPED: [&str; 2] = ["node_modules", "target"];
/// As many entries are listed.
const MAX_ENTRIES: usize = 500;
/// As deep are files searched for.
const MAX_DEPTH: usize = 64;
/// As many files are searched.
const MAX_SEARCHED: usize = 10_000;
/// Larger files are not searched, and read no further.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// As much of one line is returned.
const MAX_LINE: usize = 400;
/// As much of one file is returned.
const MAX_TEXT: usize = 48 * 1024;

/// A folder that nothing below leads out of.
#[derive(Debug)]
struct Folder {
    /// Canonical.
    root: PathBuf,
}

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        let root = path.canonicalize()?;
        if !root.is_dir() {
            let said = format!("{} is not a folder", path.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, said));
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
        self.walk(
            &path,
            args.depth.unwrap_or(2),
            context,
            &mut |name, size| {
                if entries == MAX_ENTRIES {
                    text.push_str("There are more; list one folder at a time.\n");
                    return Walk::Stop;
                }
                entries += 1;
                let _ = match size {
                    Some(1) => writeln!(text, "{name} (1 byte)"),
                    Some(size) => writeln!(text, "{name} ({size} bytes)"),
                    None => writeln!(text, "{name}/"),
                };
                Walk::On
            },
        )?;
        if text.is_empty() {
            text.push_str("No files: the folder is empty.");
        }
        Ok(text)
    }

    fn search(&self, args: &SearchFiles, context: &Context) -> Result<String, ToolError> {
        let path = self.find(args.path.as_deref().unwrap_or("."))?;
        let wanted = args.text.to_lowercase();
        let most = args.max_hits.unwrap_or(50);
        let (mut text, mut hits, mut files) = (String::new(), 0, 0);
        self.walk(&path, MAX_DEPTH, context, &mut |name, size| {
            let Some(size) = size.filter(|size| *size <= MAX_FILE) else {
                return Walk::On;
            };
            files += 1;
            let Ok(content) = read_text(&self.root.join(name), size) else {
                return Walk::On;
            };
            for (number, line) in (1..).zip(content.lines()) {
                if !line.to_lowercase().contains(&wanted) {
                    continue;
                }
                if hits == most || text.len() >= MAX_TEXT {
                    text.push_str("There are more; search for something rarer.\n");
                    return Walk::Stop;
                }
                hits += 1;
                let _ = writeln!(text, "{name}:{number}: {}", cut(line.trim(), MAX_LINE));
            }
            if files == MAX_SEARCHED {
                text.push_str("There are more files; search in one folder.\n");
                return Walk::Stop;
            }
            Walk::On
        })?;
        if text.is_empty() {
            return Ok(format!(
                "No line of {files} files contains {:?}.",
                args.text
            ));
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
        let content = read_text(&path, meta.len())?;
        let total = content.lines().count();
        let first = args.first_line.unwrap_or(1).max(1);
        if first > total.max(1) {
            return Err(ToolError::new(format!("The file has only {total} lines.")));
        }
        let mut text = String::new();
        let mut last = first - 1;
        for line in content
            .lines()
            .skip(first - 1)
            .take(args.lines.unwrap_or(400))
        {
            if text.len() + line.len() > MAX_TEXT {
                if text.is_empty() {
                    text.push_str(cut(line, MAX_TEXT));
                    last += 1;
                }
                break;
            }
            text.push_str(line);
            text.push('\n');
            last += 1;
        }
        let name = self.name(&path);
        Ok(match meta.len() > MAX_FILE {
            true => format!(
                "{name}, lines {first} to {last}; the file is too large for the rest:\n{text}"
            ),
            false if total == 0 => "The file is empty.".to_owned(),
            false => format!("{name}, lines {first} to {last} of {total}:\n{text}"),
        })
    }

    fn write(&self, args: &WriteFile, context: &Context) -> Result<String, ToolError> {
        let asked = Path::new(&args.path);
        let Some(name) = asked.file_name() else {
            return Err(ToolError::new("The path must end with the file's name."));
        };
        if is_hidden(&name.to_string_lossy()) {
            return Err(ToolError::new("Hidden files are not written."));
        }
        // The file need not be there, but its folder: no link in it leads out.
        let folder = self.find(&asked.parent().unwrap_or(asked).to_string_lossy())?;
        if !folder.is_dir() {
            return Err(ToolError::new("The file's folder is a file."));
        }
        let path = folder.join(name);
        // Of a link itself, wherever it leads.
        let old = match path.symlink_metadata() {
            Ok(old) if old.is_file() => Some(old),
            Ok(_) => return Err(ToolError::new("That is not a regular file.")),
            Err(_) => None,
        };
        // Whoever reads it meanwhile reads all of the old text, or all of the new.
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
        let bytes = args.text.len();
        Ok(format!("Wrote {bytes} bytes to {}.", self.name(&path)))
    }

    /// The file or folder that the model means, if it lies in this folder.
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
        // Links were followed: this is where the file really is.
        let Ok(below) = found.strip_prefix(&self.root) else {
            return Err(ToolError::new("The path leads out of the current folder."));
        };
        if below
            .components()
            .any(|part| is_hidden(&part.as_os_str().to_string_lossy()))
        {
            return Err(ToolError::new("Hidden files are not shown."));
        }
        Ok(found)
    }

    /// A path as the model knows it.
    fn name(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let parts: Vec<_> = below
            .components()
            .map(|c| c.as_os_str().to_string_lossy())
            .collect();
        parts.join("/")
    }

    /// Shows `see` the name of each file and folder below `path`, in order, and the sizes of files.
    ///
    /// Links are left out: they may lead anywhere, also back.
    fn walk(
        &self,
        path: &Path,
        depth: usize,
        context: &Context,
        see: &mut dyn FnMut(&str, Option<u64>) -> Walk,
    ) -> Result<Walk, ToolError> {
        if path.is_file() {
            let size = path.metadata().map_err(unreadable)?.len();
            return Ok(see(&self.name(path), Some(size)));
        }
        let mut entries: Vec<_> = fs::read_dir(path).map_err(unreadable)?.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            // Nobody waits any more: this thread is better used otherwise.
            if context.is_cancelled() {
                return Ok(Walk::Stop);
            }
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if is_hidden(&name) || SKIPPED.contains(&&*name) {
                continue;
            }
            let path = entry.path();
            let mut then = Walk::On;
            if kind.is_dir() {
                then = see(&self.name(&path), None);
                if depth > 1 && matches!(then, Walk::On) {
                    // One folder that may not be read does not end the walk.
                    then = self
                        .walk(&path, depth - 1, context, see)
                        .unwrap_or(Walk::On);
                }
            } else if kind.is_file()
                && let Ok(meta) = entry.metadata()
            {
                then = see(&self.name(&path), Some(meta.len()));
            }
            if matches!(then, Walk::Stop) {
                return Ok(Walk::Stop);
            }
        }
        Ok(Walk::On)
    }
}

/// Whether to go on with a walk.
#[derive(Clone, Copy, Debug)]
enum Walk {
    On,
    Stop,
}

fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

/// The text of a file, up to `MAX_FILE`.
fn read_text(path: &Path, size: u64) -> Result<String, ToolError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.contains(&0) {
        return Err(ToolError::new(
            "The file is binary, and cannot be read as text.",
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if size > MAX_FILE && error.utf8_error().error_len().is_none() => {
            // The limit fell within a character.
            let whole = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(whole);
            String::from_utf8(bytes).map_err(ToolError::from)
        }
        Err(_) => Err(ToolError::new(
            "The file is not UTF-8 text, and cannot be read.",
        )),
    }
}

/// What the model reads of an error; the paths of the machine are not its business.
fn unreadable(error: io::Error) -> ToolError {
    let said = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "There is no such file or folder. Use list_files to see what there is."
        }
        io::ErrorKind::PermissionDenied => "The file may not be read.",
        _ => "The file could not be read.",
    };
    ToolError::new(said).with_source(error)
}

/// The first `most` bytes of a line.
fn cut(line: &str, most: usize) -> &str {
    line.get(..line.floor_char_boundary(most)).unwrap_or(line)
}

#[cfg(test)]
mod tests;
