//! The target that a route with `rewrite` sends.

use regex::bytes::Regex;
use sluice_config::{QueryRule, RewritePart, RewriteTemplate};

use super::path::{encode, encode_path, has_dot_segments, normalised};

/// A route's `rewrite`, ready for use.
#[derive(Debug)]
pub struct Rewrite {
    template: RewriteTemplate,
    /// `None` if the template refers to no group.
    pattern: Option<Regex>,
}

impl Rewrite {
    /// Prepares the `rewrite` of a route, if it has one. Both texts were checked with the configuration.
    pub fn of(route: &sluice_config::Route) -> Option<Self> {
        let pattern = route.path_regex.as_deref();
        let template = RewriteTemplate::read(route.rewrite.as_deref()?, pattern).ok()?;
        let has_groups = template.parts.iter().any(|part| matches!(part, RewritePart::Group(_)));
        let pattern = pattern.filter(|_| has_groups).and_then(|pattern| sluice_config::pattern(pattern).ok());
        Some(Self { template, pattern })
    }

    /// The new path and query. Groups and the path are those of the normal form that the route was matched by, so what
    /// a client sent encoded is decoded, and encoded again only where it must be.
    ///
    /// `None` if what was inserted makes dot segments with what is beside it: the application would leave the path of
    /// the template.
    pub fn apply(&self, path: &[u8], query: &[u8]) -> Option<Vec<u8>> {
        let path = normalised(path);
        let groups = self.pattern.as_ref().and_then(|pattern| pattern.captures(&path));
        let (mut new_path, mut new_query) = (Vec::with_capacity(path.len()), None::<Vec<u8>>);
        for part in &self.template.parts {
            let inserted = match part {
                RewritePart::Text(text) => {
                    push_text(text.as_bytes(), &mut new_path, &mut new_query);
                    continue;
                }
                RewritePart::Path => &path[..],
                RewritePart::Group(group) => groups
                    .as_ref()
                    .and_then(|groups| groups.get(*group))
                    .map_or(&[][..], |found| found.as_bytes()),
            };
            match &mut new_query {
                Some(new_query) => encode(inserted, is_in_query, new_query),
                None => new_path.extend_from_slice(inserted),
            }
        }
        if has_dot_segments(&new_path) {
            return None;
        }
        let mut target = Vec::with_capacity(new_path.len() + query.len() + 1);
        new_path.dedup_by(|after, before| *after == b'/' && *before == b'/');
        encode_path(&new_path, &mut target);
        let mut added = new_query.unwrap_or_default();
        let kept = match self.template.query {
            QueryRule::Keep | QueryRule::Append => query,
            QueryRule::Drop => {
                // The question mark that says so, unless it began the query.
                added.pop();
                &[]
            }
        };
        let given: Vec<&[u8]> = [&added[..], kept].into_iter().filter(|one| !one.is_empty()).collect();
        if !given.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&given.join(&b"&"[..]));
        }
        Some(target)
    }
}

/// Adds text of the template; its first question mark begins the query.
fn push_text(text: &[u8], path: &mut Vec<u8>, query: &mut Option<Vec<u8>>) {
    if let Some(query) = query {
        return query.extend_from_slice(text);
    }
    match memchr::memchr(b'?', text) {
        Some(mark) => {
            path.extend_from_slice(&text[..mark]);
            *query = Some(text[mark + 1..].to_vec());
        }
        None => path.extend_from_slice(text),
    }
}

/// What a client sent must not look like another parameter.
fn is_in_query(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$'()*,;:@/".contains(&byte)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use sluice_config::{Action, Route};

    use super::*;

    fn rewritten(pattern: &str, template: &str, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let route = Route {
            path_regex: Some(pattern.to_owned()),
            rewrite: Some(template.to_owned()),
            ..Route::new("a", Action::Cluster("c".to_owned()))
        };
        let target = Rewrite::of(&route).unwrap().apply(path.as_bytes(), query.as_bytes());
        target.map_or_else(|| "none".to_owned(), |target| String::from_utf8(target).unwrap())
    }

    #[test]
    fn the_new_target_takes_groups_path_and_query() {
        for (pattern, template, target, wanted) in [
            ("^/api/(.*)$", "/v2/$1", "/api/x/y?z=1", "/v2/x/y?z=1"),
            ("^/api/(.*)$", "/v2/$1?", "/api/x?z=1", "/v2/x"),
            ("^/api/(.*)$", "/v2?p=$1?", "/api/x?z=1", "/v2?p=x"),
            ("^/(?P<id>[0-9]+)$", "/item?id=${id}", "/42?z=1", "/item?id=42&z=1"),
            ("^/", "/index.php?q={path}", "/a/b", "/index.php?q=/a/b"),
            ("^/(.*)", "/$1", "/a%20b/%3Fc%23", "/a%20b/%3Fc%23"),
            ("^/(.*)", "/$1", "/a%252e%252e/%zz", "/a%252e%252e/%25zz"),
            ("^/(.*)", "/x?q=$1", "/a&b=c+d%26", "/x?q=a%26b%3Dc%2Bd%26"),
            ("^/a(.*)b$", "/files/$1/c", "/a..b", "none"),
            ("^/static(.*)", "/files/$1", "/static../secret", "none"),
            ("^/static(.*)", "/files/$1", "/static/x", "/files/x"),
            ("^/public/(.*)$", "/pub/$1", "/public/%%32e%%32e/admin", "/pub/%252e%252e/admin"),
            ("^/api/(.*)", "/v2/$1", "/api/caf%E9/x%0Ay", "/v2/caf%E9/x%0Ay"),
            ("^/(.*)", "/$1", "/%C3%A9", "/%C3%A9"),
            ("^/(a)?(b)?", "/x$1$2", "/b", "/xb"),
            ("^/x", "/a$$b", "/x", "/a$b"),
        ] {
            assert_eq!(rewritten(pattern, template, target), wanted, "{pattern} {template} {target}");
        }
    }

    proptest! {
        #[test]
        fn a_new_target_is_valid_and_has_no_dot_segments(path in "/([!-~]|%|%2e|%25|[.]|/){0,12}", template in "(/|x|[.]|[.][.]|\\$1|\\{path\\}){0,6}") {
            prop_assume!(!path.contains(['?', '#']));
            prop_assume!(RewriteTemplate::read(&format!("/{template}"), Some("^(.*)$")).is_ok());
            let target = rewritten("^(.*)$", &format!("/{template}"), &path);
            prop_assume!(target != "none");
            prop_assert!(target.starts_with('/'), "{}", target);
            prop_assert!(target.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#<>\"".contains(&byte)), "{}", target);
            prop_assert!(!has_dot_segments(target.as_bytes()), "{}", target);
            prop_assert!(!target.starts_with("//"), "{}", target);
        }
    }
}
