//! `sluice.yaml(5)`: the format of the file, then every key with default, range and reason.

use sluice_config::{self as config, NumberRange};

use super::keys::{self, Key};
use super::roff::{section, text, title};

const DESCRIPTION: &[&str] = &[
    "sluice reads one YAML file. Unknown keys are mistakes; `sluice check` prints all mistakes at once, \
     each with its path and line, and `sluice config` prints the effective configuration.",
    "Write times as 250ms, 5s, 1m30s, 24h or 30d, and sizes as 512b, 64k, 20m or 1g (powers of 1024). An address is ip:port, [v6]:port, name:port or unix:/path. \
     Anchors, aliases and merge keys work; tags and repeated keys are mistakes.",
    "Keys are named here by their dotted paths; NAME stands for the name of a cluster, and [] for an index \
     of a list. `--set PATH=VALUE` sets one on the command line, such as --set \
     clusters.app.fail_open=false.",
];

const EXAMPLE: &str = include_str!("../../../../config/minimal.yaml");

/// The whole page.
pub(super) fn page() -> String {
    let paragraphs: Vec<String> = DESCRIPTION.iter().map(|part| text(part)).collect();
    let mut page = title("sluice.yaml", 5);
    page += &section("NAME", "sluice.yaml \\- configuration of sluice\n");
    page += &section("DESCRIPTION", &(paragraphs.join("\n.PP\n") + "\n"));
    let mut keys = String::new();
    let ranges = config::number_ranges();
    for key in keys::all() {
        keys += &entry(&key, &ranges);
    }
    page += &section("KEYS", &keys);
    let example: String = EXAMPLE.lines().map(|line| text(line) + "\n").collect();
    page += &section("EXAMPLE", &format!(".nf\n{example}.fi\n"));
    page + &section("SEE ALSO", "\\fBsluice\\fR(1), \\fBsluice\\-check\\fR(1), \\fBsluice\\-config\\fR(1)\n")
}

/// What is known of a key.
pub(super) struct Facts {
    pub(super) default: Option<String>,
    pub(super) example: Option<String>,
    /// From where to where, of a number.
    pub(super) range: Option<String>,
    pub(super) text: String,
}

pub(super) fn facts(key: &Key, ranges: &[(String, Vec<NumberRange>)]) -> Facts {
    // The file says "none" for a key without a default.
    let remark = key.text.strip_prefix("none").map(|rest| rest.trim_start_matches([';', ':', ' ']));
    let is_default = key.is_default && remark.is_none();
    let is_shown = !matches!((key.value.as_str(), is_default), ("", _) | ("[]" | "{}", false));
    let value = is_shown.then(|| key.value.clone());
    let (default, example) = if is_default { (value, None) } else { (None, value) };
    let default = default.or_else(|| remark.map(|_| "none".to_owned()));
    let range = range(ranges, &key.path).map(|(least, greatest)| format!("{least} to {greatest}"));
    let remark = remark.unwrap_or(&key.text);
    let text = if remark.is_empty() { String::new() } else { sentence(remark) };
    Facts { default, example, range, text }
}

fn entry(key: &Key, ranges: &[(String, Vec<NumberRange>)]) -> String {
    let known = facts(key, ranges);
    let mut said = Vec::new();
    match known.default.as_deref() {
        Some("none") => said.push("None by default.".to_owned()),
        Some(value) => said.push(format!("Default {value}.")),
        None => {}
    }
    said.extend(known.example.map(|value| format!("For example {value}.")));
    said.extend(known.range.map(|range| format!("From {range}.")));
    said.extend((!known.text.is_empty()).then_some(known.text));
    let body = if said.is_empty() { "A map.".to_owned() } else { said.join(" ") };
    format!(".TP\n\\fB{}\\fR\n{}\n", text(&key.path), text(&body))
}

/// Minimum and maximum of a number.
fn range<'r>(ranges: &'r [(String, Vec<NumberRange>)], path: &str) -> Option<(&'r str, &'r str)> {
    let (map, name) = path.rsplit_once('.').unwrap_or(("", path));
    let (_, numbers) = ranges.iter().find(|(one, _)| *one == map)?;
    let (_, least, greatest) = numbers.iter().find(|(one, _, _)| *one == name)?;
    Some((least, greatest))
}

/// A remark as a sentence; alignment spaces are removed.
fn sentence(remark: &str) -> String {
    let mut words = remark.split_whitespace().collect::<Vec<_>>().join(" ");
    // A word with other characters in it is kept as it is written.
    let first = words.split(' ').next().unwrap_or_default().trim_end_matches([',', ';', ':']);
    if first.chars().all(|c| c.is_ascii_lowercase()) && !first.is_empty() {
        words[..1].make_ascii_uppercase();
    }
    if !words.ends_with(['.', ':', ']', '}']) {
        words.push('.');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_with_default_range_and_reason() {
        let page = page();
        let entry = ".TP\n\\fBclusters.NAME.pool.idle_timeout\\fR\nDefault 4s. From 1ms to 24h. Below the 5 s of \
                     Node and uvicorn, so that sluice closes first.\n";
        assert!(page.contains(entry), "{page}");
        assert!(page.contains(".TP\n\\fBlisteners[].address\\fR\nFor example 127.0.0.1:8080.\n"));
    }

    #[test]
    fn no_line_is_accidentally_a_request() {
        let known = [".TH ", ".SH ", ".TP", ".PP", ".nf", ".fi"];
        for line in page().lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(known.iter().any(|one| line.starts_with(one)), "{line}");
        }
    }
}
