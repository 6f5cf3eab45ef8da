//! The template of `rewrite`: what the application gets as the target in place of the client's path.

use regex::bytes::Regex;

use super::Mistake;
use super::problem::quote;

/// Maximum bytes of a template.
const BYTES_MAX: usize = 1000;
/// Maximum number of references: each may insert as much as the whole path.
const REFERENCES_MAX: usize = 20;

/// A template, read.
#[derive(Clone, Debug, PartialEq)]
pub struct RewriteTemplate {
    /// Its parts, in order.
    pub parts: Vec<RewritePart>,
    /// What happens to the client's query.
    pub query: QueryRule,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum RewritePart {
    /// Sent as it is.
    Text(String),
    /// What a group of `path_regex` matched; 0 is the whole match.
    Group(usize),
    /// The whole path.
    Path,
}

/// What happens to the client's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryRule {
    /// It follows the new path.
    Keep,
    /// It follows the query of the template.
    Append,
    /// It is dropped: the template ends with a question mark.
    Drop,
}

impl RewriteTemplate {
    /// Reads a template. `pattern` is the route's `path_regex`.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn read(text: &str, pattern: Option<&str>) -> Result<Self, Mistake> {
        if !text.starts_with('/') {
            return Err(format!("{} does not begin with /; write a path such as /v2/$1", quote(text)).into());
        }
        if text.len() > BYTES_MAX {
            return Err(
                format!("a template of {} bytes is too long; write at most {BYTES_MAX}", text.len()).into()
            );
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('#') {
            let message = "has a space, control or non-ASCII character or a fragment; write it as %XX";
            return Err(format!("{} {message}", quote(text)).into());
        }
        super::text::without_dots(text)?;
        // A mistake in the expression was reported.
        let pattern = match pattern.map(super::pattern) {
            Some(Err(_)) => return Ok(Self { parts: Vec::new(), query: QueryRule::Keep }),
            Some(Ok(pattern)) => Some(pattern),
            None => None,
        };
        let parts = parts(text, pattern.as_ref())?;
        if parts.iter().filter(|part| !matches!(part, RewritePart::Text(_))).count() > REFERENCES_MAX {
            return Err(
                format!("{} has too many references; write at most {REFERENCES_MAX}", quote(text)).into()
            );
        }
        let query = match text.split_once('?') {
            None => QueryRule::Keep,
            Some(_) if text.ends_with('?') => QueryRule::Drop,
            Some(_) => QueryRule::Append,
        };
        Ok(Self { parts, query })
    }
}

fn parts(text: &str, pattern: Option<&Regex>) -> Result<Vec<RewritePart>, Mistake> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '{', '}']) {
        literal.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            literal.push('$');
            rest = after;
            continue;
        }
        let (part, after) = reference(text, rest, pattern)?;
        if !literal.is_empty() {
            parts.push(RewritePart::Text(std::mem::take(&mut literal)));
        }
        parts.push(part);
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(RewritePart::Text(literal));
    }
    Ok(parts)
}

/// The reference at the start of `rest`, and what follows it.
fn reference<'t>(
    text: &str,
    rest: &'t str,
    pattern: Option<&Regex>,
) -> Result<(RewritePart, &'t str), Mistake> {
    if let Some(after) = rest.strip_prefix("{path}") {
        return Ok((RewritePart::Path, after));
    }
    let Some(after) = rest.strip_prefix('$') else {
        return Err(
            format!("{} has a stray brace; write {{path}}, or %7B and %7D for braces", quote(text)).into()
        );
    };
    let Some(pattern) = pattern else {
        return Err(format!("{} has a $ without path_regex; write $$ for a dollar sign", quote(text)).into());
    };
    let digits = after.len() - after.trim_start_matches(|one: char| one.is_ascii_digit()).len();
    let (group, after) = match after.strip_prefix('{').and_then(|name| name.split_once('}')) {
        Some((name, after)) => (pattern.capture_names().position(|known| known == Some(name)), after),
        None => {
            (after[..digits].parse().ok().filter(|group| *group < pattern.captures_len()), &after[digits..])
        }
    };
    match group {
        Some(group) => Ok((RewritePart::Group(group), after)),
        None => Err(format!(
            "{} names a group that path_regex does not have; it has {}, write $1 or ${{name}}",
            quote(text),
            pattern.captures_len() - 1
        )
        .into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_text_groups_and_the_path() {
        let template = RewriteTemplate::read("/v2/$1/${id}$$?p={path}", Some("^/(a)/(?P<id>b)")).unwrap();
        let text = |text: &str| RewritePart::Text(text.to_owned());
        let wanted = [
            text("/v2/"),
            RewritePart::Group(1),
            text("/"),
            RewritePart::Group(2),
            text("$?p="),
            RewritePart::Path,
        ];
        assert_eq!((&template.parts[..], template.query), (&wanted[..], QueryRule::Append));
        assert_eq!(RewriteTemplate::read("/a", None).unwrap().query, QueryRule::Keep);
        assert_eq!(RewriteTemplate::read("/a?", None).unwrap().query, QueryRule::Drop);
        assert_eq!(RewriteTemplate::read("/a?b=c?", None).unwrap().query, QueryRule::Drop);
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (template, pattern, wanted) in [
            ("v2", None, "does not begin with /"),
            ("/$1", None, "has a $ without path_regex"),
            ("/$2", Some("^/(a)"), "it has 1, write $1 or ${name}"),
            ("/${b}", Some("^/(?P<a>a)"), "names a group that path_regex does not have"),
            ("/$", Some("a"), "names a group"),
            ("/{host}", None, "has a stray brace"),
            ("/a}", None, "has a stray brace"),
            ("/a b", None, "has a space"),
            ("/a#b", None, "a fragment"),
            ("/a/../b", None, "has a dot segment"),
            ("/%2E/b?c=..", None, "has a dot segment"),
        ] {
            let message = RewriteTemplate::read(template, pattern).unwrap_err().to_string();
            assert!(message.contains(wanted), "{template}: {message}");
        }
        assert!(RewriteTemplate::read(&"/{path}".repeat(21), None).is_err());
    }
}
