use concentric_core::{Error, ErrorKind, Str};
use std::{
    error::Error as StdError,
    fmt, io,
    path::{Path, PathBuf},
};

/// The error of a skill that cannot be loaded or used.
#[derive(Debug)]
#[non_exhaustive]
pub enum SkillError {
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
    /// A skill from files has another of these errors.
    At {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        error: Box<Self>,
    },
}

impl SkillError {
    /// Returns the reason, without the path.
    pub fn kind(&self) -> &Self {
        match self {
            Self::At { error, .. } => error,
            _ => self,
        }
    }

    /// Returns the file or folder, unless the skill was created in code.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::At { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(super) fn at(self, path: &Path) -> Self {
        match self {
            Self::At { .. } => self,
            error => Self::At {
                path: path.to_owned(),
                error: Box::new(error),
            },
        }
    }
}

impl From<io::Error> for SkillError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for SkillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "skill at `{}`: ", path.display())?,
            None => f.write_str("skill: ")?,
        }
        match self.kind() {
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
            Self::At { error, .. } => error.fmt(f),
        }
    }
}

impl StdError for SkillError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.kind() {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SkillError> for Error {
    fn from(error: SkillError) -> Self {
        Self::new(ErrorKind::Configuration, error.to_string()).with_source(error)
    }
}
