use super::{Skill, SkillError, parse};
use concentric_core::Str;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// The limit of a file that a model reads (bytes).
pub(super) const MAX_FILE_BYTES: usize = 256 * 1024;

const MAX_FILES: usize = 256;
const MAX_DEPTH: usize = 8;
const MANIFEST: &str = "SKILL.md";

/// The location of the text of a skill's file.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Text(Str),
    Disk(PathBuf),
}

/// Reads the skill in `folder`.
pub(super) fn read_skill(folder: &Path) -> Result<Skill, SkillError> {
    let root = folder
        .canonicalize()
        .map_err(|error| SkillError::from(error).at(folder))?;
    let manifest = folder.join(MANIFEST);
    let mut skill = read_text(&root.join(MANIFEST), &root, parse::MAX_BYTES)
        .and_then(|text| parse::parse(&text))
        .map_err(|kind| kind.at(&manifest))?;
    // A link to a folder has the name that the link's owner chose.
    let name = folder.file_name().or_else(|| root.file_name());
    if name.is_none_or(|name| *name != *skill.name) {
        let name = skill.name;
        return Err(SkillError::NameMismatch { name }.at(&manifest));
    }
    walk(&root, &root, "", 0, &mut skill.files)?;
    skill.folder = Some(root);
    Ok(skill)
}

/// Lists the folders with skills in `root`, sorted by name.
pub(super) fn skill_folders(root: &Path) -> Result<Vec<Result<PathBuf, SkillError>>, SkillError> {
    let real = root
        .canonicalize()
        .map_err(|error| SkillError::from(error).at(root))?;
    let mut folders = Vec::new();
    for name in names(root)? {
        let folder = root.join(&name);
        if folder.join(MANIFEST).symlink_metadata().is_err() {
            continue;
        }
        folders.push(match folder.canonicalize() {
            Ok(target) if target.starts_with(&real) => Ok(folder),
            Ok(_) => Err(SkillError::Escapes.at(&folder)),
            Err(error) => Err(SkillError::from(error).at(&folder)),
        });
    }
    Ok(folders)
}

/// Reads the text of a skill's file.
pub(super) fn read_file(source: &Source, folder: Option<&Path>) -> Result<Str, SkillError> {
    match (source, folder) {
        (Source::Text(text), _) => Ok(text.clone()),
        (Source::Disk(path), Some(root)) => read_text(path, root, MAX_FILE_BYTES).map(Str::from),
        (Source::Disk(_), None) => Err(SkillError::Escapes),
    }
}

fn walk(
    root: &Path,
    folder: &Path,
    before: &str,
    depth: usize,
    files: &mut BTreeMap<Str, Source>,
) -> Result<(), SkillError> {
    if depth > MAX_DEPTH {
        return Err(SkillError::TooDeep { limit: MAX_DEPTH }.at(folder));
    }
    for name in names(folder)? {
        let path = folder.join(&name);
        let kind = path
            .symlink_metadata()
            .map_err(|error| SkillError::from(error).at(&path))?
            .file_type();
        let name = format!("{before}{name}");
        if kind.is_symlink() {
            // Links to files inside of the skill are listed at their targets.
            match path.canonicalize() {
                Ok(target) if !target.starts_with(root) => {
                    return Err(SkillError::Escapes.at(&path));
                }
                _ => {}
            }
        } else if kind.is_dir() {
            walk(root, &path, &format!("{name}/"), depth + 1, files)?;
        } else if kind.is_file() && name != MANIFEST {
            files.insert(name.into(), Source::Disk(path));
            if files.len() > MAX_FILES {
                return Err(SkillError::TooManyFiles { limit: MAX_FILES }.at(root));
            }
        }
    }
    Ok(())
}

/// Lists the entries of a folder in order, except for hidden ones and names that are not UTF-8.
fn names(folder: &Path) -> Result<Vec<String>, SkillError> {
    let at = |error| SkillError::Io(error).at(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(at)? {
        if let Ok(name) = entry.map_err(at)?.file_name().into_string()
            && !name.starts_with('.')
            && !name.chars().any(char::is_control)
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the text of a file in `root`, of at most `limit` bytes.
fn read_text(path: &Path, root: &Path, limit: usize) -> Result<String, SkillError> {
    let path = path.canonicalize()?;
    if !path.starts_with(root) {
        return Err(SkillError::Escapes);
    }
    // Checked before opening: opening a named pipe blocks.
    if !path.metadata()?.is_file() {
        return Err(SkillError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(&path)?
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(SkillError::TooLarge { limit });
    }
    String::from_utf8(bytes).map_err(|_| SkillError::NotUtf8)
}
