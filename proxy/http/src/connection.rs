//! The Connection field (RFC 9110 section 7.6.1): its options for this connection, and how many fields it nominates.

use super::grammar::{is_token, members};
use super::kind::FieldKind;

/// Most fields that one head may nominate. Each is compared with every field name, so this limits the work.
const NOMINATED_MAX: u8 = 32;

/// The combined options of all Connection fields of one head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionOptions {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    nominated: u8,
}

/// A member is not a token, or there are too many members.
#[derive(Debug)]
pub(crate) struct BadConnection;

impl ConnectionOptions {
    /// Adds one Connection field.
    pub(crate) fn add(&mut self, value: &[u8]) -> Result<(), BadConnection> {
        for member in members(value) {
            if !is_token(member) {
                return Err(BadConnection);
            }
            self.add_member(member)?;
        }
        Ok(())
    }

    /// Whether a field is nominated that would otherwise be forwarded.
    pub(crate) fn nominates_any(&self) -> bool {
        self.nominated > 0
    }

    fn add_member(&mut self, member: &[u8]) -> Result<(), BadConnection> {
        match FieldKind::of(member) {
            FieldKind::KeepAlive => self.keep_alive = true,
            FieldKind::Upgrade => self.upgrade = true,
            // Many clients nominate these two. They are never copied, nominated or not.
            FieldKind::Te | FieldKind::Http2Settings => {}
            _ if member.eq_ignore_ascii_case(b"close") => self.close = true,
            _ if self.nominated == NOMINATED_MAX => return Err(BadConnection),
            _ => self.nominated += 1,
        }
        Ok(())
    }
}
