//! Routes with `path_regex`, which come before those with `path_prefix`: they may take requests from a rule.

use regex_syntax::hir::{Hir, HirKind, Look, literal::Extractor};
use sluice_config::{Action, Route};

use super::Place;

/// Rules of a prefix of which a route with an expression takes requests.
pub(super) fn taken_by_patterns(routes: &[Route]) -> Vec<String> {
    let takers: Vec<(usize, &Route, Reach)> = routes
        .iter()
        .enumerate()
        .filter(|(_, route)| matches!(route.action, Action::Cluster(_)))
        .filter_map(|(index, route)| Some((index, route, Reach::of(route.path_regex.as_deref()?)?)))
        .collect();
    let rules = routes.iter().enumerate().filter(|(_, route)| route.is_rule());
    let said = rules.filter_map(|(index, rule)| {
        let Place::Below(prefix) = Place::of(rule) else { return None };
        let takes = |(other, route, reach): &&(usize, &Route, Reach)| {
            *other != index && prefix != b"/" && share_host(rule, route) && lacks_rules_of(route, rule) && reach.meets(&prefix)
        };
        let (other, taker, _) = takers.iter().find(takes)?;
        let pattern = taker.path_regex.as_deref().unwrap_or_default();
        Some(format!(
            "routes[{index}]: requests below {:?} that match {pattern:?} go to routes[{other}], because an expression \
             comes before a prefix: what this route asks for does not hold there; add its keys to routes[{other}], \
             leave the prefix out of that by not.path_prefix, or write access with path_prefix",
            rule.path_prefix
        ))
    });
    said.collect()
}

/// Whether some host may lead to both.
fn share_host(rule: &Route, taker: &Route) -> bool {
    rule.hosts.is_empty() == taker.hosts.is_empty()
        && (rule.hosts.is_empty() || rule.hosts.iter().any(|host| taker.hosts.contains(host)))
}

/// Whether a route asks for less than a rule, and does not leave the rule's paths alone.
fn lacks_rules_of(taker: &Route, rule: &Route) -> bool {
    let is_less = (rule.auth.is_some() && taker.auth.is_none())
        || (rule.access.is_some() && taker.access.is_none())
        || rule.rate_limits.iter().any(|limit| !taker.rate_limits.contains(limit))
        || !matches!(rule.action, Action::Cluster(_));
    is_less && !taker.not.path_prefix.contains(&rule.path_prefix)
}

/// Which paths an expression may match.
struct Reach {
    /// With what its matches begin, at the start of the path; `None` if they may be anywhere.
    starts: Option<Vec<Vec<u8>>>,
}

impl Reach {
    /// `None` if it is not an expression.
    fn of(pattern: &str) -> Option<Self> {
        let hir =
            regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok()?;
        if !begins_at_start(&hir) {
            return Some(Self { starts: None });
        }
        let literals = Extractor::new().extract(&hir);
        let starts = literals.literals().map(|all| all.iter().map(|one| one.as_bytes().to_vec()).collect());
        Some(Self { starts })
    }

    /// Whether it may match a path below a prefix.
    fn meets(&self, prefix: &[u8]) -> bool {
        self.starts.as_ref().is_none_or(|starts| {
            starts.iter().any(|start| start.starts_with(prefix) || prefix.starts_with(start))
        })
    }
}

fn begins_at_start(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Look(look) => *look == Look::Start,
        HirKind::Concat(parts) => parts.first().is_some_and(begins_at_start),
        HirKind::Capture(capture) => begins_at_start(&capture.sub),
        HirKind::Alternation(parts) => parts.iter().all(begins_at_start),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn expressions_reach_what_they_can_match() {
        for (pattern, prefix, meets) in [
            ("^/api/(.*)", "/api/admin", true),
            ("^/api/(.*)", "/staff", false),
            ("^/(en|de)/", "/de", true),
            ("^/(en|de)/", "/fr", false),
            ("[.]php$", "/login", true),
            ("^/", "/anything", true),
            ("^/staff/x", "/staff", true),
            ("^(/a|/b)", "/b/c", true),
            ("(^/a|/b)", "/c", true),
            ("(?i)^/api", "/other", false),
        ] {
            assert_eq!(Reach::of(pattern).unwrap().meets(prefix.as_bytes()), meets, "{pattern} {prefix}");
        }
    }
}
