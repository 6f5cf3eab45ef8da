//! The page that lists a folder.

use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;

use nix::dir::{Dir, Type};
use sluice_core::html::escape_html;
use sluice_core::router::encoded_path;

/// Maximum number of names on one page. A page of them has some 200 KB.
const NAMES_MAX: usize = 1000;

/// The page for an open folder, with the path under which a client knows it. Blocks.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn page(folder: OwnedFd, path: &[u8]) -> io::Result<Vec<u8>> {
    let mut folder = Dir::from_fd(folder)?;
    let mut names = Vec::new();
    let mut is_cut = false;
    for entry in folder.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if names.len() == NAMES_MAX {
            is_cut = true;
            break;
        }
        names.push((name.to_vec(), entry.file_type() == Some(Type::Directory)));
    }
    names.sort();
    Ok(render(path, &names, is_cut).into_bytes())
}

fn render(path: &[u8], names: &[(Vec<u8>, bool)], is_cut: bool) -> String {
    let title = String::from_utf8_lossy(path);
    let title = escape_html(&title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n"
    );
    if path != b"/" {
        page.push_str("<li><a href=\"../\">../</a>\n");
    }
    for (name, is_folder) in names {
        let slash = if *is_folder { "/" } else { "" };
        let shown = String::from_utf8_lossy(name);
        let shown = escape_html(&shown);
        // A name with a colon would be taken for a scheme.
        let _ = writeln!(page, "<li><a href=\"./{}{slash}\">{shown}{slash}</a>", reference(name));
    }
    page.push_str("</ul>\n");
    if is_cut {
        let _ = writeln!(page, "<p>Only {NAMES_MAX} names are shown.</p>");
    }
    page
}

/// A name as a part of a URL.
fn reference(name: &[u8]) -> String {
    let percent_encoded: Vec<u8> =
        name.iter().flat_map(|&byte| if byte == b'%' { b"%25".to_vec() } else { vec![byte] }).collect();
    escape_html(&String::from_utf8_lossy(&encoded_path(&percent_encoded))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_links_and_cannot_be_markup() {
        let names = [
            (b"<b>&\".txt".to_vec(), false),
            (b"100%25 a?#.txt".to_vec(), false),
            (b"javascript:alert(1)".to_vec(), false),
            (b"sub".to_vec(), true),
        ];
        let page = render(b"/<x>/", &names, true);
        for part in [
            "<title>/&lt;x&gt;/</title>",
            "<li><a href=\"../\">../</a>",
            "<a href=\"./%3Cb%3E&amp;%22.txt\">&lt;b&gt;&amp;&#34;.txt</a>",
            "<a href=\"./100%2525%20a%3F%23.txt\">100%25 a?#.txt</a>",
            "<a href=\"./javascript:alert(1)\">",
            "<a href=\"./sub/\">sub/</a>",
            "Only 1000 names",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!render(b"/", &[], false).contains("../"));
    }
}
