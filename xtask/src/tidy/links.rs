//! Links between documents: what they lead to exists, headings included.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use super::Document;

/// Adds a problem for each relative link that leads nowhere.
pub(super) fn check(documents: &[Document], problems: &mut Vec<String>) {
    let files: BTreeSet<&str> = documents.iter().map(|document| document.path.as_str()).collect();
    let pages: BTreeMap<&str, BTreeSet<String>> = documents
        .iter()
        .filter(|document| is_page(&document.path))
        .map(|page| (page.path.as_str(), anchors(&page.text)))
        .collect();
    for page in documents.iter().filter(|document| is_page(&document.path)) {
        for (line, link) in links(&page.text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if target.is_empty() { page.path.clone() } else { resolve(&page.path, target) };
            let is_folder = || files.iter().any(|file| file.starts_with(&format!("{path}/")));
            // Not text, so not among the documents.
            let is_picture = path.ends_with(".png");
            let has_anchor =
                anchor.is_empty() || pages.get(path.as_str()).is_none_or(|known| known.contains(anchor));
            if !(files.contains(path.as_str()) || is_folder() || is_picture) || !has_anchor {
                problems.push(format!("{}:{line}: the link to {link} leads nowhere", page.path));
            }
        }
    }
}

/// Tables of results link to plots, which are made again and not committed.
fn is_page(path: &str) -> bool {
    path.ends_with(".md") && !path.starts_with("bench/results/")
}

/// The relative path `link`, seen from the page `from`, from the root.
fn resolve(from: &str, link: &str) -> String {
    let mut path = Path::new(from).parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path.display().to_string()
}

/// The links of a page with their lines, except those in blocks of code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((link, after)) = after.split_once(')') else { break };
            found.push((index + 1, link));
            rest = after;
        }
    }
    found
}

/// The anchors of headings: lower case, blanks as `-`, other signs left out; repeated ones with a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let Some(title) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let anchor: String = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut name = anchor.clone();
        let mut count = 0;
        while !found.insert(name.clone()) {
            count += 1;
            name = format!("{anchor}-{count}");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> Document {
        Document { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn links_to_missing_files_and_headings_are_problems() {
        let a = "[x](../b.md) [y](../b.md#good-one) [z](#here) [web](https://a/b)\n# Here\n```\n[c](none.md)\n```\n\
                 [bad](c.md) [worse](../b.md#bad)\n";
        let documents = [document("docs/a.md", a), document("b.md", "## Good `one`\n")];
        let mut problems = Vec::new();
        check(&documents, &mut problems);
        assert_eq!(
            problems,
            [
                "docs/a.md:6: the link to c.md leads nowhere",
                "docs/a.md:6: the link to ../b.md#bad leads nowhere"
            ]
        );
    }
}
