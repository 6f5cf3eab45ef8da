//! The bodies of an exchange: their limits, and the reason codes of their faults.

use sluice_config::Limits;
use sluice_core::error::Reason;
use sluice_http::{ChunkLimits, Framing};

use crate::body::{BodyError, Transfer};

/// The reason code of a failed request body.
pub(crate) fn upload_reason(error: BodyError) -> Reason {
    match error {
        BodyError::Malformed => Reason::BadBody,
        BodyError::TooLarge => Reason::BodyTooLarge,
        BodyError::Incomplete => Reason::BodyIncomplete,
        BodyError::TooSlow => Reason::BodyTooSlow,
        BodyError::Unwritable => Reason::UpstreamClosed,
        // Only responses are encoded.
        BodyError::Unencodable => Reason::LocalResource,
    }
}

/// The reason code of a response body that failed while being forwarded.
pub(super) fn download_reason(error: BodyError) -> Reason {
    match error {
        BodyError::Unwritable => Reason::ClientGone,
        BodyError::Unencodable => Reason::LocalResource,
        BodyError::TooLarge => Reason::ResponseTooLarge,
        BodyError::Malformed | BodyError::Incomplete | BodyError::TooSlow => Reason::ResponseTruncated,
    }
}

/// A request body under the listener's limits, with its framing unchanged.
pub(crate) fn request_transfer(framing: Framing, limits: &Limits) -> Transfer {
    Transfer::new(framing, framing, chunk_limits(limits), limits.body_bytes_max)
        .at_least(limits.receive_rate_bytes_min)
}

/// The listener's limits on chunk framing; they apply to responses too.
pub(super) fn chunk_limits(limits: &Limits) -> ChunkLimits {
    ChunkLimits { line_bytes_max: limits.chunk_line_bytes_max, trailer_bytes_max: limits.trailer_bytes_max }
}
