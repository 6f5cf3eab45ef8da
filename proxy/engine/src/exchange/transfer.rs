//! Bodies as an exchange has them: under whose limits they pass, and which reason stands for a fault in one.

use sluice_config::Limits;
use sluice_core::error::Reason;
use sluice_http::{ChunkLimits, Framing};

use crate::body::{BodyError, Transfer};

/// The reason that stands for a failed request body.
pub(crate) fn upload_reason(error: BodyError) -> Reason {
    match error {
        BodyError::Malformed => Reason::BadBody,
        BodyError::TooLarge => Reason::BodyTooLarge,
        BodyError::Incomplete => Reason::BodyIncomplete,
        BodyError::Unwritable => Reason::UpstreamClosed,
    }
}

/// The reason that stands for a response body that failed on its way.
pub(super) fn download_reason(error: BodyError) -> Reason {
    match error {
        BodyError::Unwritable => Reason::ClientGone,
        BodyError::TooLarge => Reason::ResponseTooLarge,
        BodyError::Malformed | BodyError::Incomplete => Reason::ResponseTruncated,
    }
}

/// A request body under the listener's limits, re-framed as it came.
pub(crate) fn request_transfer(framing: Framing, limits: &Limits) -> Transfer {
    Transfer::new(framing, framing, chunk_limits(limits), limits.body_bytes_max)
}

/// The listener's limits on chunk framing; they hold for responses too.
pub(super) fn chunk_limits(limits: &Limits) -> ChunkLimits {
    ChunkLimits { line_bytes_max: limits.chunk_line_bytes_max, trailer_bytes_max: limits.trailer_bytes_max }
}
