//! Error pages of a service: `STATUS.html` in a folder, in which `{{ .Message }}` is replaced by the operator's
//! message.
//!
//! kamal-proxy treats them as Go templates. Of those, sluice supports `{{ .Message }}` and one level of
//! `{{ if .Message }}…{{ else }}…{{ end }}`. A page with any other action is refused instead of shown.

use crate::service::InvalidService;
use std::collections::BTreeMap;
use std::path::Path;

use super::error::ServiceError;

/// Maximum size of a page, in bytes.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// Pages by status.
#[derive(Debug, Default)]
pub struct ServicePages(BTreeMap<u16, Vec<Part>>);

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Message,
    /// The parts used with a message, and those used without one.
    Choice(Vec<Part>, Vec<Part>),
}

impl ServicePages {
    /// Reads the pages of a folder; there are none if `folder` is empty. Blocks.
    ///
    /// # Errors
    /// When the folder contains no page, or a page cannot be read.
    pub fn load(folder: &str) -> Result<Self, ServiceError> {
        if folder.is_empty() {
            return Ok(Self::default());
        }
        let refuse = |what: String| ServiceError::ErrorPages(format!("{folder}: {what}"));
        let mut pages = BTreeMap::new();
        let mut found = false;
        for entry in std::fs::read_dir(folder).map_err(|error| refuse(error.to_string()))? {
            let path = entry.map_err(|error| refuse(error.to_string()))?.path();
            if path.extension().is_none_or(|extension| extension != "html") {
                continue;
            }
            let (status, parts) =
                page(&path).map_err(|what| refuse(format!("{}: {what}", path.display())))?;
            found = true;
            if let Some(status) = status {
                pages.insert(status, parts);
            }
        }
        // As Go's ParseFS does.
        if found { Ok(Self(pages)) } else { Err(refuse("the folder contains no .html file".to_owned())) }
    }

    /// The page of a status, if there is one.
    pub fn render(&self, status: u16, message: &str) -> Option<String> {
        let mut out = String::new();
        render(self.0.get(&status)?, message, &mut out);
        Some(out)
    }
}

fn page(path: &Path) -> Result<(Option<u16>, Vec<Part>), InvalidService> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > PAGE_BYTES_MAX {
        return Err(format!("{size} bytes; the maximum is {PAGE_BYTES_MAX}").into());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let status = path.file_stem().and_then(|name| name.to_str()?.parse().ok());
    Ok((status, parse(&text)?))
}

fn render(parts: &[Part], message: &str, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Message => out.push_str(&crate::html::escape_html(message)),
            Part::Choice(with, without) => {
                render(if message.is_empty() { without } else { with }, message, out);
            }
        }
    }
}

fn parse(text: &str) -> Result<Vec<Part>, InvalidService> {
    let mut parts = Vec::new();
    // For an open `if`: the parts before it, and after `else` also the parts for the case with a message.
    let mut outer: Option<(Vec<Part>, Option<Vec<Part>>)> = None;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (action, behind) = after.split_once("}}").ok_or("an action has no }}")?;
        let bare = action.trim_matches('-').trim();
        let trimmed = if action.starts_with("- ") { before.trim_end() } else { before };
        parts.push(Part::Text(trimmed.to_owned()));
        rest = if action.ends_with(" -") { behind.trim_start() } else { behind };
        match (bare.split_whitespace().collect::<Vec<_>>().as_slice(), &mut outer) {
            ([".Message"], _) => parts.push(Part::Message),
            (["if", ".Message"], None) => outer = Some((std::mem::take(&mut parts), None)),
            (["else"], Some((_, with @ None))) => *with = Some(std::mem::take(&mut parts)),
            (["end"], Some((before, with))) => {
                let last = std::mem::replace(&mut parts, std::mem::take(before));
                let choice = match with.take() {
                    Some(with) => Part::Choice(with, last),
                    None => Part::Choice(last, Vec::new()),
                };
                parts.push(choice);
                outer = None;
            }
            _ => return Err(format!("{{{{{action}}}}} is not supported").into()),
        }
    }
    if outer.is_some() {
        return Err("an if has no end".into());
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shown(page: &str, message: &str) -> String {
        let mut out = String::new();
        render(&parse(page).unwrap(), message, &mut out);
        out
    }

    #[test]
    fn pages_show_the_message() {
        let page = "<h1>{{ if .Message }}says {{ .Message }}{{ else }}gone{{ end }}</h1>";
        assert_eq!(shown(page, "back <soon>"), "<h1>says back &lt;soon&gt;</h1>");
        assert_eq!(shown(page, ""), "<h1>gone</h1>");
        assert_eq!(shown("a {{- if .Message -}} b {{- end }} c", "x"), "ab c");
        assert_eq!(shown("body { color: red }", "x"), "body { color: red }");
    }

    #[test]
    fn unsupported_actions_are_refused() {
        for page in
            ["{{ range . }}", "{{ .Message", "{{ if .Message }}", "{{ end }}", "{{ else }}", "{{ .Other }}"]
        {
            assert!(parse(page).is_err(), "{page}");
        }
    }

    #[test]
    fn a_folder_without_pages_is_refused() {
        assert!(ServicePages::load("").unwrap().render(503, "").is_none());
        let error = ServicePages::load("/nonexistent").unwrap_err();
        assert_eq!(error.to_string(), "unable to load error pages");
        assert!(error.details()[0].starts_with("/nonexistent: "));
    }
}
