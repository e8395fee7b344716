use concentric_core::{Error, ErrorKind, Str};
use std::{
    error::Error as StdError,
    fmt, io,
    path::{Path, PathBuf},
};

/// Why a skill can't be used.
#[derive(Debug)]
pub struct SkillError {
    // Where it is, if it is a file's.
    path: Option<PathBuf>,
    kind: SkillErrorKind,
}

/// What is wrong with a skill.
#[derive(Debug)]
#[non_exhaustive]
pub enum SkillErrorKind {
    /// It can't be read.
    Io(io::Error),
    /// It is not a file.
    NotAFile,
    /// It is a link that leads out of its folder.
    Escapes,
    /// It has more than so many bytes.
    TooLarge {
        /// How many it may have.
        limit: usize,
    },
    /// The skill has more than so many files.
    TooManyFiles {
        /// How many it may have.
        limit: usize,
    },
    /// A folder of the skill is too deep in others.
    TooDeep {
        /// How deep it may be.
        limit: usize,
    },
    /// It is not UTF-8.
    NotUtf8,
    /// It does not begin with front matter between two lines of `---`.
    NoFrontMatter,
    /// Its front matter is not YAML of the right fields.
    FrontMatter(Str),
    /// A field is missing.
    Missing(&'static str),
    /// A field is not what it is to be.
    Invalid {
        /// The field.
        field: &'static str,
        /// What it is to be.
        expected: &'static str,
    },
    /// Its name is not its folder's.
    NameMismatch {
        /// Its name.
        name: Str,
    },
    /// Two skills have this name.
    DuplicateName(Str),
    /// There is no skill of this name.
    Unknown(Str),
}

impl SkillError {
    /// What is wrong.
    pub const fn kind(&self) -> &SkillErrorKind {
        &self.kind
    }

    /// The file or folder that it is about, unless it is about a skill that is written in code.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn at(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }
}

impl SkillErrorKind {
    pub(super) fn at(self, path: &Path) -> SkillError {
        SkillError::from(self).at(path)
    }
}

impl From<SkillErrorKind> for SkillError {
    fn from(kind: SkillErrorKind) -> Self {
        Self { path: None, kind }
    }
}

impl From<io::Error> for SkillErrorKind {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for SkillErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The source says the rest.
            Self::Io(_) => f.write_str("it can't be read"),
            Self::NotAFile => f.write_str("it is not a file"),
            Self::Escapes => f.write_str("it is a link that leads out of its folder"),
            Self::TooLarge { limit } => write!(f, "it has more than {limit} bytes"),
            Self::TooManyFiles { limit } => write!(f, "the skill has more than {limit} files"),
            Self::TooDeep { limit } => write!(f, "it is in more than {limit} folders"),
            Self::NotUtf8 => f.write_str("it is not UTF-8"),
            Self::NoFrontMatter => {
                f.write_str("it does not begin with front matter between two lines of `---`")
            }
            Self::FrontMatter(reason) => write!(f, "its front matter: {reason}"),
            Self::Missing(field) => write!(f, "it has no `{field}`"),
            Self::Invalid { field, expected } => write!(f, "its `{field}` is not {expected}"),
            Self::NameMismatch { name } => {
                write!(f, "its name is `{name}`, and not that of its folder")
            }
            Self::DuplicateName(name) => write!(f, "two skills are named `{name}`"),
            Self::Unknown(name) => write!(f, "there is no skill `{name}`"),
        }
    }
}

impl fmt::Display for SkillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "skill at `{}`: {}", path.display(), self.kind),
            None => write!(f, "skill: {}", self.kind),
        }
    }
}

impl StdError for SkillError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.kind {
            SkillErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SkillError> for Error {
    fn from(error: SkillError) -> Self {
        Self::new(ErrorKind::Configuration, error.to_string()).with_source(error)
    }
}
