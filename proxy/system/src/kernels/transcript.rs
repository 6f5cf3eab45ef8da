//! Parses the output of a guest: the parts of its script, and how each ended.

/// Prefix of lines of the guest's script.
const PART: &str = "== part ";
const ENDED: &str = "== ended with ";
const ALL: &str = "== all, ";

/// One command in the guest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    /// `None` if it was cut off.
    pub(super) exit: Option<i32>,
}

impl Part {
    /// Its last lines.
    pub(super) fn tail(&self) -> String {
        const LINES: usize = 20;
        self.lines[self.lines.len().saturating_sub(LINES)..].join("\n")
    }
}

/// The parts, and the last line of the script if it was completed.
pub(super) fn parts(lines: &[String]) -> (Vec<Part>, Option<&str>) {
    let mut parts: Vec<Part> = Vec::new();
    let mut all = None;
    for line in lines {
        if let Some(name) = line.strip_prefix(PART) {
            parts.push(Part { name: name.to_owned(), ..Part::default() });
        } else if let Some(rest) = line.strip_prefix(ALL) {
            all = Some(rest);
        } else if let Some(part) = parts.last_mut().filter(|part| part.exit.is_none()) {
            match line.strip_prefix(ENDED) {
                Some(exit) => part.exit = exit.parse().ok(),
                None => part.lines.push(line.clone()),
            }
        }
    }
    (parts, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_was_cut_off_has_no_end() {
        let text = "noise\n== part a\none\n== ended with 101\n== part b\ntwo";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let part =
            |name: &str, line: &str, exit| Part { name: name.to_owned(), lines: vec![line.to_owned()], exit };
        assert_eq!(parts(&lines), (vec![part("a", "one", Some(101)), part("b", "two", None)], None));
        let ended = ["== all, after 3 s".to_owned()];
        assert_eq!(parts(&ended), (vec![], Some("after 3 s")));
        let after = ["== part a", "one", "== ended with 101", "the kernel's last words"].map(str::to_owned);
        assert_eq!(parts(&after).0, [part("a", "one", Some(101))]);
    }
}
