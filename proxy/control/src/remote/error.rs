//! Why a server has no answer.

use derive_more::Display;

/// Why a server has no answer that can be used, in a sentence for the log.
#[derive(Clone, Debug, Display)]
#[display("{text}")]
pub(crate) struct RemoteError {
    text: String,
    is_refusal: bool,
}

impl RemoteError {
    /// The server has answered that it does not do what it was asked (4xx).
    pub(super) fn refusal(text: String) -> Self {
        Self { text, is_refusal: true }
    }

    /// Whether the server has answered that it does not do what it was asked.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// The same, of a server that is named.
    pub(super) fn of(self, server: &impl std::fmt::Display) -> Self {
        Self { text: format!("{server}: {}", self.text), ..self }
    }
}

impl From<String> for RemoteError {
    fn from(text: String) -> Self {
        Self { text, is_refusal: false }
    }
}

impl From<&str> for RemoteError {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}
