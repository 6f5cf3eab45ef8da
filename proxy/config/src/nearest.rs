//! The known word nearest to a mistyped one, for "did you mean".

/// The nearest of `known`, if it is near enough to be what the user meant.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // Longer than any known key; the cost grows with the length.
    const WORD_CHARS_MAX: usize = 40;
    let length = word.chars().count();
    if !(2..=WORD_CHARS_MAX).contains(&length) {
        return None;
    }
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let allowed = (length / 3).clamp(1, 3);
    let best = known
        .iter()
        .map(|candidate| (strsim::osa_distance(&lower, candidate), *candidate))
        .min_by_key(|(edits, _)| *edits)?;
    (best.0 <= allowed).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["endpoints", "balance", "response_timeout_ms"];
        assert_eq!(nearest("endpoint", &known), Some("endpoints"));
        assert_eq!(nearest("Response-Timeout-Ms", &known), Some("response_timeout_ms"));
        assert_eq!(nearest("ballance", &known), Some("balance"));
        assert_eq!(nearest("weight", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest("ap", &["api"]), Some("api"));
        assert_eq!(nearest("vai", &["via"]), Some("via"));
        assert_eq!(nearest(&"e".repeat(1000), &known), None);
    }
}
