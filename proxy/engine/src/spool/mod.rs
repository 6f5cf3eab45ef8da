//! Bodies that a route buffers completely: in memory as far as allowed, the rest in a file.
//!
//! An [`Intake`] receives a body, [`BufferedBody`] is the complete body, and [`Message`] sends it after a head.
//! Everything is counted in a [`Budget`] of the process. When it is dropped, its share is returned and the file is
//! deleted.

mod file;
mod intake;
mod message;
mod store;

use std::sync::Arc;

use sluice_core::budget::Budget;
use sluice_core::error::Reason;
use sluice_net::buffers::Buffers;

use crate::body::BodyError;

pub(crate) use intake::{BufferedBody, Intake};
pub(crate) use message::{Message, SendError};
pub(crate) use store::Medium;

/// What one worker needs to buffer bodies.
pub(crate) struct Spool {
    medium: Medium,
    /// The budget of the process.
    budget: Arc<Budget>,
    buffers: Buffers,
}

impl Spool {
    /// Counts buffered bytes in `budget`.
    pub(crate) fn new(medium: Medium, budget: Arc<Budget>, buffers: Buffers) -> Self {
        Self { medium, budget, buffers }
    }
}

/// Why a body cannot be buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// It is incomplete, malformed, or too large.
    Body(BodyError),
    /// The limits of memory and files are reached.
    Full,
    /// The file failed.
    Disk,
}

impl HoldError {
    /// The reason code for a request.
    pub(crate) fn of_request(self) -> Reason {
        match self {
            Self::Body(BodyError::Malformed) => Reason::BadBody,
            Self::Body(BodyError::TooLarge) => Reason::BodyTooLarge,
            Self::Body(BodyError::TooSlow) => Reason::BodyTooSlow,
            // Nothing is written or encoded while a body is received.
            Self::Body(BodyError::Incomplete | BodyError::Unwritable | BodyError::Unencodable) => {
                Reason::BodyIncomplete
            }
            Self::Full => Reason::RequestBufferFull,
            Self::Disk => Reason::RequestSpoolFailed,
        }
    }

    /// The reason code for a response of which the client has received nothing.
    pub(crate) fn of_response(self) -> Reason {
        match self {
            Self::Body(BodyError::Malformed) => Reason::BadResponse,
            Self::Body(BodyError::TooLarge) => Reason::ResponseTooLarge,
            Self::Body(
                BodyError::Incomplete | BodyError::TooSlow | BodyError::Unwritable | BodyError::Unencodable,
            ) => Reason::ResponseTruncated,
            Self::Full => Reason::ResponseBufferFull,
            Self::Disk => Reason::ResponseSpoolFailed,
        }
    }
}
