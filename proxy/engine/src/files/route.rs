//! The `files` of a route, prepared.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use regex::bytes::Regex;
use sluice_config as config;
use sluice_http::Coding;

use crate::compress::coding;

/// The `files` of a route, prepared.
pub(crate) struct FileRoute {
    /// Different for each configuration: what is kept of files is not mixed.
    pub(super) id: u64,
    /// As configured.
    pub(crate) config: config::Files,
    /// Whether hidden files are served: an application has named them.
    pub(super) serves_hidden: bool,
    /// Codings in which files may be found.
    pub(super) offered: Box<[Coding]>,
    /// Which Cache-Control applies.
    rules: Vec<(Option<Regex>, Vec<u8>)>,
}

impl FileRoute {
    pub(crate) fn new(config: &config::Files) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Expressions were checked with the configuration.
        let rule = |rule: &config::CacheRule| {
            let pattern = rule.path_regex.as_deref().map(config::pattern).transpose().ok()?;
            Some((pattern, rule.value.clone().into_bytes()))
        };
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            config: config.clone(),
            serves_hidden: false,
            offered: config.precompressed.iter().copied().map(coding).collect(),
            rules: config.cache_control.iter().filter_map(rule).collect(),
        }
    }

    /// A folder whose files an application names.
    pub(super) fn of_application(root: &Path) -> Self {
        let config = config::Files { root: root.to_owned(), index: None, ..config::Files::default() };
        Self { serves_hidden: true, ..Self::new(&config) }
    }

    /// The value of Cache-Control for a path in its normal form.
    pub(super) fn cache_control(&self, path: &[u8]) -> Option<&[u8]> {
        let fits = |pattern: &Option<Regex>| pattern.as_ref().is_none_or(|pattern| pattern.is_match(path));
        self.rules.iter().find(|(pattern, _)| fits(pattern)).map(|(_, value)| &value[..])
    }

    /// The paths that are tried for a path in its normal form, and whether each is that path itself.
    pub(super) fn candidates<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = (Vec<u8>, bool)> + 'a {
        self.config.try_paths.iter().map(move |tried| match tried.split_once("{path}") {
            Some((before, after)) => {
                let is_path_itself = before.is_empty() && after.is_empty();
                ([&in_normal_form(before)[..], path, &in_normal_form(after)].concat(), is_path_itself)
            }
            None => (in_normal_form(tried), false),
        })
    }
}

/// Configured names are not encoded.
fn in_normal_form(name: &str) -> Vec<u8> {
    name.replace('%', "%25").into_bytes()
}
