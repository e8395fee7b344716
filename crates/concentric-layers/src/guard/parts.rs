use std::{fmt, ops::BitOr};

/// Kinds of text.
///
/// ```
/// use concentric_layers::guard::Parts;
///
/// let parts = Parts::TEXT | Parts::ARGUMENTS;
/// assert!(parts.contains(Parts::TEXT));
/// assert!(!parts.contains(Parts::TEXT | Parts::USER));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Parts(u16);

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident $bit:literal;)*) => {
        impl Parts {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            /// All kinds.
            pub const ALL: Self = Self($(1 << $bit)|*);
        }

        impl fmt::Debug for Parts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let names = [$((Self::$name, stringify!($name))),*];
                let names = names.into_iter().filter(|(part, _)| self.contains(*part));
                let names: Vec<&str> = names.map(|(_, name)| name).collect();
                f.write_str(if names.is_empty() { "NONE" } else { "" })?;
                f.write_str(&names.join(" | "))
            }
        }
    };
}

parts! {
    /// Messages of users, and replies to interrupts.
    USER 0;
    /// The system prompt, and messages of the operator.
    SYSTEM 1;
    /// Text of a model, with typed output, and the names and URLs of its files. Also the reason of an
    /// outcome, and the messages of errors.
    TEXT 2;
    /// Reasoning of a model.
    REASONING 3;
    /// Refusals of a model.
    REFUSAL 4;
    /// Tool calls: the arguments, and the name as the model wrote it.
    ARGUMENTS 5;
    /// Outcomes of tool calls: the content, the structured data, and the reason of a halt.
    RESULTS 6;
    /// The values of [`Event::State`](concentric_core::Event::State) and
    /// [`Event::Custom`](concentric_core::Event::Custom).
    CUSTOM 7;
    /// Data that only a provider can interpret. It cannot be changed, so it is removed if a rule matches in it.
    PROVIDER_DATA 8;
    /// The whole conversation in [`Finish::transcript`](concentric_core::Finish::transcript), which callers
    /// use for the next request.
    TRANSCRIPT 9;
}

impl Parts {
    /// No kind.
    pub const NONE: Self = Self(0);

    /// Whether all kinds of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Parts {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
