//! Priorities of requests (RFC 9218).

/// How urgent a response is, and whether parts of it are of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether the client can use a part of the response.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, is_incremental: false }
    }
}

impl Priority {
    /// Reads the value of the field, a dictionary of RFC 9651. What is unknown or malformed is ignored.
    pub fn read(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            // Parameters of a member mean nothing here.
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
            match member {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read() {
        let read = |text: &str| {
            let Priority { urgency, is_incremental } = Priority::read(text.as_bytes());
            (urgency, is_incremental)
        };
        assert_eq!(read(""), (3, false));
        assert_eq!(read("u=0"), (0, false));
        assert_eq!(read("u=5, i"), (5, true));
        assert_eq!(read("i=?1,u=7;x=1"), (7, true));
        assert_eq!(read("i, i=?0, u=8, u=-1, u=, x"), (3, false));
    }
}
