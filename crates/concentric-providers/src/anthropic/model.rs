//! The features of a model, derived from its name.
//!
//! Based on the service's migration guides: Claude 3.7 thinks within a budget, 4.6 chooses the
//! amount of thinking itself, and from 4.7 on budgets and sampling parameters are not supported.

use crate::{Capabilities, Sources};

/// A model, identified by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// `None` if the name does not contain a version, so that no feature is rejected.
    version: Option<(u8, u8)>,
    /// Whether the model belongs to a family that always thinks.
    always_thinks: bool,
}

impl Model {
    /// Parses names such as `claude-opus-4-7`, `claude-3-7-sonnet-20250219` and
    /// `us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
    pub(super) fn named(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let words = name.split_once("claude").map_or("", |(_, words)| words);
        let words = words.split(|c: char| !c.is_ascii_alphanumeric());
        // Longer numbers are dates.
        let numbers = words.clone().map(|word| match word.len() {
            1 | 2 => word.parse::<u8>().ok(),
            _ => None,
        });
        let mut numbers = numbers.skip_while(Option::is_none);
        let major = numbers.next().flatten();
        let minor = numbers.next().flatten();
        Self {
            version: major.map(|major| (major, minor.unwrap_or(0))),
            always_thinks: words
                .into_iter()
                .any(|word| matches!(word, "fable" | "mythos")),
        }
    }

    fn is_from(self, version: (u8, u8)) -> bool {
        self.version.is_some_and(|is| is >= version)
    }

    fn is_before(self, version: (u8, u8)) -> bool {
        self.version.is_some_and(|is| is < version)
    }

    pub(super) fn thinks(self) -> bool {
        !self.is_before((3, 7))
    }

    /// Whether the amount of thinking is an effort, not a budget.
    pub(super) fn is_adaptive(self) -> bool {
        !self.is_before((4, 6))
    }

    pub(super) fn takes_budget(self) -> bool {
        !self.always_thinks && !self.is_from((4, 7))
    }

    /// Whether thinking is enabled by default.
    pub(super) fn thinks_by_itself(self) -> bool {
        self.is_from((5, 0))
    }

    /// Whether thinking can be disabled.
    pub(super) fn can_disable_thinking(self) -> bool {
        !self.always_thinks && !self.is_from((5, 5))
    }

    fn samples(self) -> bool {
        !self.always_thinks && !self.is_from((4, 7))
    }

    pub(super) fn takes_one_of_temperature_and_top_p(self) -> bool {
        self.is_from((4, 1))
    }

    pub(super) fn supports_prefill(self) -> bool {
        !self.always_thinks && !self.is_from((4, 6))
    }

    /// The maximum number of tokens for requests without a limit.
    pub(super) fn max_tokens(self) -> u32 {
        match self.version {
            Some(version) if version >= (3, 7) => 32_000,
            None if self.always_thinks => 32_000,
            Some((3, 0)) => 4_096,
            Some(version) if version < (3, 0) => 4_096,
            _ => 8_192,
        }
    }

    pub(super) fn capabilities(self) -> Capabilities {
        Capabilities {
            output_schema: !self.is_before((4, 1)),
            output_schema_with_tools: !self.is_before((4, 1)),
            audio: Sources::NONE,
            reasoning_effort: self.thinks(),
            temperature: self.samples(),
            top_p: self.samples(),
            penalties: false,
            seed: false,
            // `check` applies the restrictions that depend on the request.
            prefill: true,
            ..Capabilities::all()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Model;

    #[test]
    fn the_version_is_parsed_from_the_name() {
        let cases = [
            ("claude-opus-4-7", Some((4, 7)), false),
            ("claude-opus-4-20250514", Some((4, 0)), false),
            ("claude-opus-4-1@20250805", Some((4, 1)), false),
            ("claude-3-7-sonnet-20250219", Some((3, 7)), false),
            ("claude-3-opus-latest", Some((3, 0)), false),
            ("claude-2.1", Some((2, 1)), false),
            (
                "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
                Some((4, 5)),
                false,
            ),
            ("anthropic/claude-4.7-opus", Some((4, 7)), false),
            ("claude-sonnet-5", Some((5, 0)), false),
            ("claude-fable-5-1", Some((5, 1)), true),
            ("claude-mythos-preview", None, true),
            ("my-deployment-7", None, false),
        ];
        for (name, version, always_thinks) in cases {
            let expected = Model {
                version,
                always_thinks,
            };
            assert_eq!(Model::named(name), expected, "{name}");
        }
    }
}
