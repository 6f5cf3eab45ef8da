//! Determines for which abuse the `h2` crate has ended a connection.

use h2::Reason;
use sluice_core::metrics::Abuse;

/// The abuse of the error that ended a connection. The crate reports it only in the debug data of its GOAWAY, which is
/// the last frame in `said`.
pub(super) fn abuse_of(error: &h2::Error, said: &[u8]) -> Option<Abuse> {
    if !(error.is_go_away() && error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)) {
        return None;
    }
    let known: [(&[u8], Abuse); 5] = [
        (b"too_many_resets", Abuse::PendingResets),
        (b"too_many_internal_resets", Abuse::Faults),
        (b"too_many_continuations", Abuse::Continuations),
        (b"header_list_way_too_large", Abuse::HeaderList),
        (b"too_many_data_frames", Abuse::DataFrames),
    ];
    let found = known.iter().find(|(word, _)| said.ends_with(word));
    Some(found.map_or(Abuse::Other, |(_, abuse)| *abuse))
}
