//! The path and the query of a request.

use std::{borrow::Cow, str::FromStr};

use http::{StatusCode, Uri};

use crate::{percent::decode, refused::Refused};

/// The maximum length of a query, in bytes.
const QUERY: usize = 4096;

/// The maximum length of an id, in bytes.
const ID: usize = 1024;

/// The resource that a path names.
#[derive(Debug, PartialEq)]
pub(super) enum Resource {
    Threads,
    Thread(String),
    Runs(String),
    Run(String, String),
    Events(String, String),
    Cancel(String, String),
}

impl Resource {
    /// Parses a path; `None` if it names no resource.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/').unwrap_or(path);
        if path.is_empty() {
            return Some(Self::Threads);
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = path.split('/');
        let thread = id(segments.next()?)?;
        let Some(runs) = segments.next() else {
            return Some(Self::Thread(thread));
        };
        if runs != "runs" {
            return None;
        }
        let Some(run) = segments.next() else {
            return Some(Self::Runs(thread));
        };
        let run = id(run)?;
        let part = segments.next();
        match (part, segments.next()) {
            (None, _) => Some(Self::Run(thread, run)),
            (Some("events"), None) => Some(Self::Events(thread, run)),
            (Some("cancel"), None) => Some(Self::Cancel(thread, run)),
            _ => None,
        }
    }

    /// The accepted methods.
    pub(super) const fn methods(&self) -> &'static str {
        match self {
            Self::Thread(_) => "GET, HEAD, DELETE, OPTIONS",
            Self::Cancel(..) => "POST, OPTIONS",
            _ => "GET, HEAD, OPTIONS",
        }
    }
}

/// Decodes an id; `None` if no thread or run has it.
fn id(segment: &str) -> Option<String> {
    let id = decode(segment)?;
    // Not all stores accept a NUL character.
    let is_id = !id.is_empty() && id.len() <= ID && !id.contains('\0');
    is_id.then(|| id.into_owned())
}

/// The parameters of a query.
pub(super) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    pub(super) fn new(uri: &'a Uri) -> Result<Self, Refused> {
        let query = uri.query().unwrap_or_default();
        if query.len() > QUERY {
            let message = format!("the query is longer than {QUERY} bytes");
            let status = StatusCode::URI_TOO_LONG;
            return Err(Refused::new(status, "too_large", &message, None));
        }
        Ok(Self(query))
    }

    /// Returns the value of a parameter. Unknown parameters are ignored.
    pub(super) fn get(&self, name: &str) -> Result<Option<Cow<'a, str>>, Refused> {
        let pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(key, _)| *key == name);
        let Some((_, value)) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Refused::field(name, "given twice"));
        }
        match decode(value) {
            Some(value) => Ok(Some(value)),
            None => Err(Refused::field(name, "invalid percent encoding")),
        }
    }

    pub(super) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refused> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Refused::field(name, "expected a number")),
        }
    }

    /// Returns the `limit`: `default` without one, and an error above `max`.
    pub(super) fn limit(&self, default: usize, max: usize) -> Result<usize, Refused> {
        match self.number("limit")? {
            None => Ok(default),
            Some(limit) if (1..=max).contains(&limit) => Ok(limit),
            Some(_) => {
                let problem = format!("expected a number from 1 to {max}");
                Err(Refused::field("limit", &problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resources() {
        let (t, r) = ("t".to_owned(), "r".to_owned());
        for (path, resource) in [
            ("", Some(Resource::Threads)),
            ("/", Some(Resource::Threads)),
            ("/t", Some(Resource::Thread(t.clone()))),
            ("/t/", Some(Resource::Thread(t.clone()))),
            ("/a%2Fb%20c", Some(Resource::Thread("a/b c".into()))),
            ("/t/runs", Some(Resource::Runs(t.clone()))),
            (
                "/runs/runs/r",
                Some(Resource::Run("runs".into(), r.clone())),
            ),
            (
                "/t/runs/r/events",
                Some(Resource::Events(t.clone(), r.clone())),
            ),
            ("/t/runs/r/cancel", Some(Resource::Cancel(t, r))),
            ("/t/runs/r/other", None),
            ("/t/runs/r/events/more", None),
            ("/t/other", None),
            ("//", None),
            ("//runs/r", None),
            ("/t/runs//events", None),
            ("/%", None),
            ("/%f", None),
            ("/%zz", None),
            ("/%ff", None),
            ("/a%00", None),
        ] {
            assert_eq!(Resource::parse(path), resource, "{path}");
        }
        assert_eq!(Resource::parse(&"x".repeat(ID + 1)), None);
    }
}
