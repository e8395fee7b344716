//! The features of a model, derived from its name.

/// A generation of Gemini models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family(Option<(u32, u32)>);

impl Family {
    /// The generation of `model`: 2.5 for `gemini-2.5-flash`. A name without a version
    /// (`gemini-flash-latest`) is treated as the newest generation.
    pub(super) fn of(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or_default();
        let version = name
            .strip_prefix("gemini-")
            .and_then(|rest| rest.split('-').next());
        Self(version.and_then(|version| {
            let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
            Some((major.parse().ok()?, minor.parse().ok()?))
        }))
    }

    fn is_from(self, major: u32, minor: u32) -> bool {
        self.0.is_none_or(|version| version >= (major, minor))
    }

    /// Whether the model accepts JSON Schema, and not only a subset of OpenAPI's.
    pub(super) fn takes_json_schema(self) -> bool {
        self.is_from(2, 5)
    }

    /// Whether the model thinks.
    pub(super) fn thinks(self) -> bool {
        self.is_from(2, 5)
    }

    /// Whether the amount of thinking is a level, not a number of tokens.
    pub(super) fn takes_level(self) -> bool {
        self.is_from(3, 0)
    }

    /// Whether calls without a signature are rejected.
    pub(super) fn wants_signatures(self) -> bool {
        self.is_from(3, 0)
    }

    /// Whether an output schema is supported in requests with tools.
    pub(super) fn joins_schema_and_tools(self) -> bool {
        self.is_from(3, 0)
    }

    /// Whether the model continues a prefilled message.
    pub(super) fn takes_prefill(self) -> bool {
        !self.is_from(3, 0)
    }

    /// Whether a function response may contain media.
    pub(super) fn takes_media_in_responses(self) -> bool {
        self.is_from(3, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::Family;

    #[test]
    fn the_generation_is_parsed_from_the_name() {
        let cases = [
            ("gemini-1.5-flash", Some((1, 5))),
            ("models/gemini-2.5-pro-preview-05-06", Some((2, 5))),
            ("gemini-3-flash-preview", Some((3, 0))),
            ("gemini-4-argon", Some((4, 0))),
            ("gemini-3.1", Some((3, 1))),
            ("gemini-flash-latest", None),
            ("gemini-", None),
            ("other", None),
        ];
        for (model, version) in cases {
            assert_eq!(Family::of(model), Family(version), "{model}");
        }
        assert!(!Family::of("gemini-2.0-flash").takes_json_schema());
        assert!(Family::of("gemini-flash-latest").wants_signatures());
    }
}
