//! Limits the number of fields of a type. Many fields are a sign that it is several things.

use super::source::Source;

/// A type with more fields gives the reason in its doc comment: `Many fields: …`.
const FIELDS_MAX: usize = 12;
const REASON: &str = "Many fields: ";

/// Types that should be divided. No type may be added; a type that is divided leaves the list.
const TO_DIVIDE: &[(&str, &str)] = &[];

/// Adds a problem for each type with too many fields and no reason.
pub(super) fn check(source: &Source<'_>, problems: &mut Vec<String>) {
    // The data that the kernel programs share has the layout that they require.
    if source.is_tests() || source.path.starts_with("proxy-ebpf/") {
        return;
    }
    let lines: Vec<&str> = source.text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = struct_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let body = lines[at + 1..].iter().take_while(|line| line.trim_end().len() != indent + 1);
        let fields = body.filter(|line| is_field(line, indent + 4)).count();
        let listed = TO_DIVIDE.contains(&(source.path, name));
        let above = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with(['/', '#']));
        let is_reasoned = listed || above.into_iter().any(|line| line.contains(REASON));
        match (fields > FIELDS_MAX, is_reasoned) {
            (true, false) => problems.push(format!(
                "{}:{}: `{name}` has {fields} fields; divide it, or say why in its comment: `{REASON}…`",
                source.path,
                at + 1
            )),
            (false, true) if listed => {
                problems.push(format!("{}: `{name}` is small enough: remove it from the list", source.path));
            }
            _ => {}
        }
    }
}

/// The name, if this line starts a type with named fields.
fn struct_name(line: &str) -> Option<&str> {
    let (before, rest) = line.trim_end().strip_suffix('{')?.split_once("struct ")?;
    let is_plain = before.trim().is_empty() || before.trim_start().starts_with("pub");
    is_plain.then(|| rest.split(['<', ' ', '{']).next().unwrap_or(rest))
}

fn is_field(line: &str, indent: usize) -> bool {
    let bare = line.trim_start();
    let name = bare.split_once(": ").map(|(name, _)| name.rsplit(' ').next().unwrap_or(name));
    let is_name =
        |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    line.len() - bare.len() == indent && !bare.starts_with("//") && name.is_some_and(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(doc: &str, fields: usize) -> usize {
        let fields: String =
            (0..fields).map(|at| format!("    /// F.\n    pub(super) f{at}: u8,\n")).collect();
        let text = format!("//! x\n\n{doc}\n#[derive(Debug)]\npub struct X<'a> {{\n{fields}}}\n");
        let mut problems = Vec::new();
        check(&Source::new("proxy/core/src/x.rs", &text), &mut problems);
        problems.len()
    }

    #[test]
    fn many_fields_need_a_reason() {
        assert_eq!(problems("/// X.", 12), 0);
        assert_eq!(problems("/// X.", 13), 1);
        assert_eq!(problems("/// X. Many fields: one a key.", 13), 0);
    }
}
