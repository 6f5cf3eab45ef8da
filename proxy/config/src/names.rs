//! The keywords of each enum in YAML, logs and metrics.

use super::{Protocol, ProxyProtocol};

/// An enum that is written as one keyword.
pub trait Word: Copy + 'static {
    /// Every value, in declaration order.
    const ALL: &'static [Self];

    /// The keyword.
    fn word(self) -> &'static str;
}

macro_rules! words {
    ($type:ident { $($name:ident = $word:literal,)* }) => {
        impl $crate::Word for $type {
            const ALL: &'static [Self] = &[$($type::$name,)*];

            fn word(self) -> &'static str {
                match self { $($type::$name => $word,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::Word::word(*self))
            }
        }
    };
}

pub(super) use words;

words!(Protocol {
    Http = "http",
    Tcp = "tcp",
    TlsPassthrough = "tls-passthrough",
});

words!(ProxyProtocol {
    Off = "off",
    V1 = "v1",
    V2 = "v2",
    Any = "any",
});
