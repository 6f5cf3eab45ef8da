//! Parses the runners' reports and compares them with bars. Runs nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Columns of the closing tables are cut to this many characters.
const COLUMN_CHARS: usize = 9;
const NAMED_MAX: usize = 60;
/// This many cases may have been affected by a pause of the machine; more are a fault.
const SILENT_MAX: usize = 12;

/// How many cases may have some verdicts.
pub(super) struct Bar {
    verdicts: &'static [&'static str],
    max: usize,
}

/// A verdict on a case that we consider wrong.
pub(super) struct Disputed {
    pub(super) id: &'static str,
    pub(super) verdict: &'static str,
    /// The rule that applies.
    pub(super) why: &'static str,
}

/// Cases by verdict.
pub(super) type Counts = BTreeMap<String, usize>;

/// One case as recorded by the runner.
pub(crate) struct Case {
    id: String,
    verdict: String,
    /// The client got a response of the backend.
    answered: bool,
    /// Further details for finding the fault.
    note: String,
}

impl Bar {
    /// No case may have any of these verdicts.
    pub(super) const fn none(verdicts: &'static [&'static str]) -> Self {
        Self { verdicts, max: 0 }
    }

    /// At most `max` cases together may have these verdicts.
    pub(super) const fn at_most(verdicts: &'static [&'static str], max: usize) -> Self {
        Self { verdicts, max }
    }
}

/// The counts of the closing table: a row of verdicts, and the `TOTAL` row below it.
///
/// # Errors
/// When there is no such table.
pub(super) fn table(lines: &[String]) -> Result<Counts> {
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let head = lines
        .iter()
        .map(|line| words(line))
        .find(|row| row.get(1).is_some_and(|word| word == "cases"))
        .context("the runner printed no table")?;
    let total = lines
        .iter()
        .map(|line| words(line))
        .find(|row| row.first().is_some_and(|word| word == "TOTAL"))
        .context("the runner's table has no TOTAL")?;
    ensure!(head.len() == total.len(), "the table's rows differ in length");
    let mut counts = Counts::new();
    for (verdict, count) in head.into_iter().zip(total).skip(1) {
        counts.insert(verdict, count.parse().context("a count in the table")?);
    }
    Ok(counts)
}

/// The cases in the runner's `--out` file, a JSON object a line.
///
/// # Errors
/// When a line is something else.
pub(super) fn cases(text: &str) -> Result<Vec<Case>> {
    text.lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).context("runner's --out")?;
            let field = |key: &str| value[key].as_str().map(str::to_owned);
            Ok(Case {
                id: field("id").context("a case without id")?,
                verdict: field("verdict").context("a case without verdict")?,
                answered: value["answers"].as_u64().is_some_and(|answers| answers > 0),
                note: format!(
                    "expected {}, status {}, {} {}",
                    value["expect"].as_str().unwrap_or("?"),
                    value["status"],
                    value.get("hazards").map(Value::to_string).unwrap_or_default(),
                    value["detail"].as_str().unwrap_or_default()
                ),
            })
        })
        .collect()
}

/// The table and the cases must agree, or one of them is misread.
///
/// # Errors
/// When they do not.
pub(super) fn agree(counts: &Counts, cases: &[Case]) -> Result<()> {
    ensure!(
        counts.get("cases") == Some(&cases.len()),
        "the table counts {:?} cases, the file has {}",
        counts.get("cases"),
        cases.len()
    );
    for case in cases {
        ensure!(counts.contains_key(column(&case.verdict)), "the table has no column for {}", case.verdict);
    }
    for (name, count) in counts.iter().filter(|(name, _)| *name != "cases") {
        let found = cases.iter().filter(|c| column(&c.verdict) == name).count();
        ensure!(found == *count, "{name}: table {count}, file {found}");
    }
    Ok(())
}

/// A pattern of the cases whose verdict depends on silence, which a busy machine may have caused: no response, one too
/// few, or none where there was one before. `None` without any, or with too many for the machine to be the cause.
pub(super) fn silent(cases: &[Case], before: &[Case]) -> Option<String> {
    let was: BTreeMap<&str, &str> = before.iter().map(|case| (&case.id[..], &case.verdict[..])).collect();
    let silent = |case: &&Case| match &case.verdict[..] {
        "HUNG" | "REFUSED" => true,
        "SMUGGLED" => case.note.contains("backend executed"),
        "PASS-wait" => was.get(&case.id[..]) == Some(&"PASS"),
        _ => false,
    };
    let ids: Vec<String> = cases.iter().filter(silent).map(|case| escaped(&case.id)).collect();
    (1..=SILENT_MAX).contains(&ids.len()).then(|| format!("^(?:{})$", ids.join("|")))
}

/// As a Python regular expression that only matches `text`.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut all, one| {
        if one.is_ascii_punctuation() {
            all.push('\\');
        }
        all.push(one);
        all
    })
}

/// Replaces verdicts by those of `again`; returns the changes.
pub(super) fn correct(cases: &mut [Case], counts: &mut Counts, again: Vec<Case>) -> Vec<String> {
    let mut lines = Vec::new();
    for new in again {
        let Some(old) = cases.iter_mut().find(|case| case.id == new.id) else { continue };
        lines.push(format!("{}: {}, then {}", old.id, old.verdict, new.verdict));
        *counts.entry(column(&old.verdict).to_owned()).or_default() -= 1;
        *counts.entry(column(&new.verdict).to_owned()).or_default() += 1;
        *old = new;
    }
    lines
}

/// Removes the disputed verdicts from the counts, and returns those that occurred.
pub(super) fn set_aside<'d>(
    counts: &mut Counts,
    cases: &[Case],
    disputed: &'d [Disputed],
) -> Vec<&'d Disputed> {
    let met = |d: &&Disputed| cases.iter().any(|case| case.id == d.id && case.verdict == d.verdict);
    let met: Vec<_> = disputed.iter().filter(met).collect();
    for one in &met {
        if let Some(count) = counts.get_mut(column(one.verdict)) {
            *count -= 1;
        }
    }
    met
}

/// Compares the counts with the bars; returns a summary.
///
/// # Errors
/// When a bar is missed, naming every failed case, the gravest first.
pub(super) fn judge(counts: &Counts, cases: &[Case], bars: &[Bar]) -> Result<String> {
    let mut missed = Vec::new();
    for bar in bars {
        let mut sum = 0;
        for verdict in bar.verdicts {
            sum +=
                counts.get(column(verdict)).with_context(|| format!("the table has no column {verdict}"))?;
        }
        if sum > bar.max {
            missed.push(format!("{}: {sum}, allowed {}", bar.verdicts.join("+"), bar.max));
        }
    }
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(verdict, count)| format!("{verdict} {count}"))
        .collect();
    let shown = shown.join(", ");
    if missed.is_empty() {
        return Ok(shown);
    }
    bail!("{}\n{shown}\n{}", missed.join("\n"), named(cases, bars).join("\n"));
}

/// The failed cases, those of a bar that allows none first.
fn named(cases: &[Case], bars: &[Bar]) -> Vec<String> {
    let grave = |verdict: &str| bars.iter().any(|bar| bar.max == 0 && bar.verdicts.contains(&verdict));
    let mut bad: Vec<&Case> = cases.iter().filter(|case| !case.verdict.starts_with("PASS")).collect();
    bad.sort_by_key(|case| (!grave(&case.verdict), &case.verdict));
    let mut lines: Vec<String> = bad
        .iter()
        .take(NAMED_MAX)
        .map(|case| format!("  {} {}: {}", case.verdict, case.id, case.note.trim_end()))
        .collect();
    if bad.len() > NAMED_MAX {
        lines.push(format!("  and {} more", bad.len() - NAMED_MAX));
    }
    lines
}

/// Cases whose verdict differs between two runs of a suite, or that only one of them has; missing cases of `after` only
/// count if it should be `whole`.
pub(super) fn differences(before: &[Case], after: &[Case], whole: bool) -> Vec<String> {
    let by_id = |cases: &[Case]| -> BTreeMap<String, String> {
        cases.iter().map(|case| (case.id.clone(), case.verdict.clone())).collect()
    };
    let (before, after) = (by_id(before), by_id(after));
    let word = |verdict: Option<&String>| verdict.map_or("absent", String::as_str).to_owned();
    let ids: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    // A prompt response where it waited before: the machine had paused.
    let sooner = |id: &str| {
        let verdicts = (before.get(id).map(String::as_str), after.get(id).map(String::as_str));
        verdicts == (Some("PASS-wait"), Some("PASS"))
    };
    ids.into_iter()
        .filter(|id| whole || after.contains_key(*id))
        .filter(|id| !sooner(id))
        .filter(|id| before.get(*id) != after.get(*id))
        .map(|id| format!("  {id}: {}, then {}", word(before.get(id)), word(after.get(id))))
        .collect()
}

/// Cases that were refused before and are answered now, or the reverse, depending on `now`.
pub(super) fn turned<'c>(before: &[Case], after: &'c [Case], now: bool) -> Vec<&'c str> {
    let was: BTreeMap<&str, bool> = before.iter().map(|case| (&case.id[..], case.answered)).collect();
    let turned = |case: &&Case| case.answered == now && was.get(&case.id[..]) == Some(&!now);
    after.iter().filter(turned).map(|case| &case.id[..]).collect()
}

fn column(verdict: &str) -> &str {
    verdict.get(..COLUMN_CHARS).unwrap_or(verdict)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TABLE: &str = "\
DESYNC     x                 forward
class                    cases      PASS   LENIENT SILENT-TR
framing                      2         1         1         0
TOTAL                        3         1         1         1
  expect=forward             3         1         1         1
4 s";
    const CASES: &str = r#"{"id": "a", "verdict": "PASS", "expect": "forward", "status": [200], "detail": ""}
{"id": "b", "verdict": "LENIENT", "expect": "reject", "status": [200], "hazards": ["x"]}
{"id": "c", "verdict": "SILENT-TRUNCATION", "expect": "truncated", "status": [200], "detail": "cut"}
"#;

    fn read() -> (Counts, Vec<Case>) {
        let lines: Vec<String> = TABLE.lines().map(str::to_owned).collect();
        (table(&lines).unwrap(), cases(CASES).unwrap())
    }

    #[test]
    fn the_table_agrees_with_its_cases() {
        let (counts, cases) = read();
        agree(&counts, &cases).unwrap();
        assert!(agree(&counts, &cases[1..]).is_err());
    }

    #[test]
    fn a_missed_bar_names_the_cases_gravest_first() {
        let (counts, cases) = read();
        let bars = [Bar::none(&["SILENT-TRUNCATION"]), Bar::at_most(&["LENIENT"], 1)];
        let error = judge(&counts, &cases, &bars).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[0], "SILENT-TRUNCATION: 1, allowed 0");
        assert!(lines[2].starts_with("  SILENT-TRUNCATION c: expected truncated"));
        assert!(lines[3].starts_with("  LENIENT b:"));
    }

    #[test]
    fn a_disputed_verdict_is_removed_but_not_others_of_its_case() {
        let (mut counts, cases) = read();
        let disputed = |id, verdict| Disputed { id, verdict, why: "" };
        let list = [disputed("b", "LENIENT"), disputed("c", "LENIENT"), disputed("x", "PASS")];
        assert_eq!(set_aside(&mut counts, &cases, &list).len(), 1);
        assert_eq!((counts["LENIENT"], counts["PASS"]), (0, 1));
    }

    #[test]
    fn only_different_verdicts_and_cases_are_differences() {
        let (_, all) = read();
        assert!(differences(&all, &all, true).is_empty());
        let (_, mut changed) = read();
        changed[0].verdict = "HUNG".to_owned();
        changed.pop();
        assert_eq!(
            differences(&all, &changed, true),
            ["  a: PASS, then HUNG", "  c: SILENT-TRUNCATION, then absent"]
        );
        assert_eq!(differences(&all, &changed, false), ["  a: PASS, then HUNG"]);
    }

    #[test]
    fn only_verdicts_that_depend_on_silence_are_repeated() {
        let (_, mut all) = read();
        assert_eq!(silent(&all, &[]), None);
        all[0].verdict = "HUNG".to_owned();
        all[0].id = "a/b.c".to_owned();
        all[1].verdict = "PASS-wait".to_owned();
        assert_eq!(silent(&all, &[]).unwrap(), r"^(?:a\/b\.c)$");
        let (_, mut before) = read();
        before[1].verdict = "PASS".to_owned();
        assert_eq!(silent(&all, &before).unwrap(), r"^(?:a\/b\.c|b)$");
        let mut counts = Counts::from([("HUNG".to_owned(), 1), ("PASS".to_owned(), 0)]);
        let again = cases(&CASES.lines().next().unwrap().replace("\"a\"", "\"a/b.c\"")).unwrap();
        assert_eq!(correct(&mut all, &mut counts, again), ["a/b.c: HUNG, then PASS"]);
        assert_eq!((counts["HUNG"], counts["PASS"]), (0, 1));
    }

    #[test]
    fn newly_answered_cases_have_turned() {
        let answers = |count| format!("{{\"id\": \"a\", \"verdict\": \"PASS\", \"answers\": {count}}}");
        let (none, some) = (cases(&answers(0)).unwrap(), cases(&answers(1)).unwrap());
        assert_eq!(turned(&none, &some, true), ["a"]);
        assert_eq!(turned(&some, &none, false), ["a"]);
        assert!(turned(&some, &some, true).is_empty() && turned(&none, &some, false).is_empty());
    }

    #[test]
    fn a_bar_reached_exactly_is_met() {
        let (counts, cases) = read();
        let bars = [Bar::at_most(&["LENIENT", "SILENT-TRUNCATION"], 2)];
        assert_eq!(judge(&counts, &cases, &bars).unwrap(), "LENIENT 1, PASS 1, SILENT-TR 1, cases 3");
    }

    #[test]
    fn output_without_a_table_is_an_error() {
        assert!(table(&["proxy not usable".to_owned()]).is_err());
    }
}
