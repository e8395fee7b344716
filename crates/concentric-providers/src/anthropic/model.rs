//! What a model takes, as far as its name says.
//!
//! By the service's migration guides: Claude 3.7 thinks within a budget, 4.6 decides itself how
//! much, and from 4.7 on there is no budget and no sampling.

use crate::{Capabilities, Sources};

/// A model, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// `None` if the name does not say it, so that nothing is refused for it.
    version: Option<(u8, u8)>,
    /// Of a family that always thinks.
    always_thinks: bool,
}

impl Model {
    /// Reads names such as `claude-opus-4-7`, `claude-3-7-sonnet-20250219` and
    /// `us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
    pub(super) fn named(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let words = name.split_once("claude").map_or("", |(_, words)| words);
        let words = words.split(|c: char| !c.is_ascii_alphanumeric());
        // Dates are longer.
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

    /// Whether it is told how much to think by a word, and not by a budget.
    pub(super) fn is_adaptive(self) -> bool {
        !self.is_before((4, 6))
    }

    pub(super) fn takes_budget(self) -> bool {
        !self.always_thinks && !self.is_from((4, 7))
    }

    /// Whether it thinks unless it is told not to.
    pub(super) fn thinks_by_itself(self) -> bool {
        self.is_from((5, 0))
    }

    /// Whether it can be told not to think.
    pub(super) fn can_be_thoughtless(self) -> bool {
        !self.always_thinks && !self.is_from((5, 5))
    }

    fn samples(self) -> bool {
        !self.always_thinks && !self.is_from((4, 7))
    }

    pub(super) fn takes_one_of_temperature_and_top_p(self) -> bool {
        self.is_from((4, 1))
    }

    pub(super) fn goes_on_with_prefill(self) -> bool {
        !self.always_thinks && !self.is_from((4, 6))
    }

    /// The most tokens to ask for, if nobody says how many.
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
            // What it depends on besides the model, `check` knows.
            prefill: true,
            ..Capabilities::all()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Model;

    #[test]
    fn a_name_says_the_version() {
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
