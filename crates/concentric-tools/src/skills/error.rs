use concentric_core::{Error, ErrorKind, Str};
use std::{
    error::Error as StdError,
    fmt, io,
    path::{Path, PathBuf},
};

/// The error of a skill that cannot be loaded or used.
#[derive(Debug)]
pub struct SkillError {
    // Only for skills from files.
    path: Option<PathBuf>,
    kind: SkillErrorKind,
}

/// The reason of a [`SkillError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum SkillErrorKind {
    /// The file or folder cannot be read.
    Io(io::Error),
    /// The path is not a regular file.
    NotAFile,
    /// A symbolic link points outside of the skill's folder.
    Escapes,
    /// A file or text is too large.
    TooLarge {
        /// The limit (bytes).
        limit: usize,
    },
    /// The skill has too many files.
    TooManyFiles {
        /// The maximum number of files.
        limit: usize,
    },
    /// A folder of the skill is nested too deeply.
    TooDeep {
        /// The maximum depth.
        limit: usize,
    },
    /// The file is not UTF-8.
    NotUtf8,
    /// The text does not start with front matter between two lines of `---`.
    NoFrontMatter,
    /// The front matter is not YAML with the expected fields.
    FrontMatter(Str),
    /// A required field is missing.
    Missing(&'static str),
    /// A field is invalid.
    Invalid {
        /// The field.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// The name of the skill differs from that of its folder.
    NameMismatch {
        /// The skill's name.
        name: Str,
    },
    /// Two skills have this name.
    DuplicateName(Str),
    /// No skill has this name.
    Unknown(Str),
}

impl SkillError {
    /// Returns the reason.
    pub const fn kind(&self) -> &SkillErrorKind {
        &self.kind
    }

    /// Returns the file or folder, unless the skill was created in code.
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
            // The source has the details.
            Self::Io(_) => f.write_str("the file cannot be read"),
            Self::NotAFile => f.write_str("not a regular file"),
            Self::Escapes => f.write_str("a symbolic link points outside of the skill's folder"),
            Self::TooLarge { limit } => write!(f, "larger than {limit} bytes"),
            Self::TooManyFiles { limit } => write!(f, "the skill has more than {limit} files"),
            Self::TooDeep { limit } => write!(f, "nested in more than {limit} folders"),
            Self::NotUtf8 => f.write_str("not valid UTF-8"),
            Self::NoFrontMatter => f.write_str("missing front matter between two lines of `---`"),
            Self::FrontMatter(reason) => write!(f, "invalid front matter: {reason}"),
            Self::Missing(field) => write!(f, "missing field `{field}`"),
            Self::Invalid { field, expected } => {
                write!(f, "invalid field `{field}`: expected {expected}")
            }
            Self::NameMismatch { name } => {
                write!(f, "the name `{name}` differs from that of the folder")
            }
            Self::DuplicateName(name) => write!(f, "two skills are named `{name}`"),
            Self::Unknown(name) => write!(f, "no skill is named `{name}`"),
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
