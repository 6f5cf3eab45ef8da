//! Bodies that a route holds back until they are whole: in memory as far as that is allowed, the rest in a file.
//!
//! An [`Intake`] receives a body, [`BufferedBody`] is the whole of it, and [`Message`] sends it on behind a head. All of it is
//! counted in a [`Budget`] of the process, and is given back, and the file gone, when it is dropped.

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

/// What one worker holds bodies with.
pub(crate) struct Spool {
    medium: Medium,
    /// Of the process.
    budget: Arc<Budget>,
    buffers: Buffers,
}

impl Spool {
    /// Counts what it holds in `budget`.
    pub(crate) fn new(medium: Medium, budget: Arc<Budget>, buffers: Buffers) -> Self {
        Self { medium, budget, buffers }
    }
}

/// Why a body cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// It is not whole, or not well-formed, or too large.
    Body(BodyError),
    /// Memory and files have all the bytes that they may.
    Full,
    /// The file failed.
    Disk,
}

impl HoldError {
    /// The reason that stands for a request.
    pub(crate) fn of_request(self) -> Reason {
        match self {
            Self::Body(BodyError::Malformed) => Reason::BadBody,
            Self::Body(BodyError::TooLarge) => Reason::BodyTooLarge,
            // Nothing is written to anybody while a body is received.
            Self::Body(BodyError::Incomplete | BodyError::Unwritable) => Reason::BodyIncomplete,
            Self::Full => Reason::RequestBufferFull,
            Self::Disk => Reason::RequestSpoolFailed,
        }
    }

    /// The reason that stands for a response; its client has got nothing of it.
    pub(crate) fn of_response(self) -> Reason {
        match self {
            Self::Body(BodyError::Malformed) => Reason::BadResponse,
            Self::Body(BodyError::TooLarge) => Reason::ResponseTooLarge,
            Self::Body(BodyError::Incomplete | BodyError::Unwritable) => Reason::ResponseTruncated,
            Self::Full => Reason::ResponseBufferFull,
            Self::Disk => Reason::ResponseSpoolFailed,
        }
    }
}
