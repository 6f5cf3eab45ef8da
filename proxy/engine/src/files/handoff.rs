//! Files that an application names in place of a body: X-Sendfile and X-Accel-Redirect.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sluice_config as config;
use sluice_core::router::{is_below, normalised};
use sluice_http::ResponseHead;

use super::route::FileRoute;

const SENDFILE: &[u8] = b"x-sendfile";
const ACCEL: &[u8] = b"x-accel-redirect";

/// The folders from which an application may have files sent.
pub(crate) struct Handoff {
    /// By their paths, in the form of paths of URLs.
    roots: Vec<(Vec<u8>, FileRoute)>,
    /// By prefixes of URLs.
    accel: Vec<(Vec<u8>, FileRoute)>,
}

/// A file that an application has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamedFile {
    /// By its path.
    Path(Vec<u8>),
    /// By a URL.
    Url(Vec<u8>),
}

impl NamedFile {
    /// The file that a response names. An empty name is none, and a response without a body has none.
    pub(crate) fn of(head: &ResponseHead) -> Option<Self> {
        if matches!(head.status(), 204 | 205 | 304) {
            return None;
        }
        let named = |name| head.get(name).filter(|value| !value.is_empty()).map(<[u8]>::to_vec);
        named(SENDFILE).map(Self::Path).or_else(|| named(ACCEL).map(Self::Url))
    }

    /// As the application wrote it.
    pub(crate) fn shown(&self) -> String {
        let (Self::Path(name) | Self::Url(name)) = self;
        String::from_utf8_lossy(name).into_owned()
    }
}

impl Handoff {
    pub(crate) fn new(config: &config::Sendfile) -> Self {
        let accel = config.accel.iter().map(|(prefix, folder)| {
            (normalised(prefix.as_bytes()).into_owned(), FileRoute::of_application(folder))
        });
        Self {
            roots: longest_first(
                config.roots.iter().map(|root| (in_url(root), FileRoute::of_application(root))),
            ),
            accel: longest_first(accel),
        }
    }

    /// The folder of a file, and the path below it in its normal form.
    pub(crate) fn locate(&self, named: &NamedFile) -> Option<(&FileRoute, Vec<u8>)> {
        let (folders, path) = match named {
            NamedFile::Path(path) => (&self.roots, encoded(path)),
            NamedFile::Url(url) => {
                let end = url.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(url.len());
                (&self.accel, url[..end].to_vec())
            }
        };
        let path = path.starts_with(b"/").then(|| normalised(&path))?;
        let (prefix, folder) = folders.iter().find(|(prefix, _)| is_below(&path, prefix))?;
        let length = prefix.strip_suffix(b"/").unwrap_or(prefix).len();
        Some((folder, path[length..].to_vec()))
    }
}

fn longest_first(folders: impl Iterator<Item = (Vec<u8>, FileRoute)>) -> Vec<(Vec<u8>, FileRoute)> {
    let mut folders: Vec<_> = folders.collect();
    folders.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    folders
}

fn in_url(path: &Path) -> Vec<u8> {
    normalised(&encoded(path.as_os_str().as_bytes())).into_owned()
}

/// A path of the filesystem, in which a percent sign means nothing else.
fn encoded(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b'%' => out.extend_from_slice(b"%25"),
            byte => out.push(*byte),
        }
    }
    out
}

/// The fields that tell an application how to name files. Rack has ignored the type since CVE-2025-61780, and its users
/// set it in the application; the mapping it still reads.
pub(crate) fn handoff_fields(config: &config::Sendfile) -> Vec<(String, String)> {
    let kind = if config.roots.is_empty() { "X-Accel-Redirect" } else { "X-Sendfile" };
    let mut fields = vec![("X-Sendfile-Type".to_owned(), kind.to_owned())];
    if config.accel.is_empty() {
        return fields;
    }
    let with_slash = |text: String| format!("{}/", text.trim_end_matches('/'));
    let mapping = config.accel.iter().map(|(prefix, folder)| {
        format!("{}={}", with_slash(folder.display().to_string()), with_slash(prefix.clone()))
    });
    let mapping: Vec<String> = mapping.collect();
    fields.push(("X-Accel-Mapping".to_owned(), mapping.join(", ")));
    fields
}

/// Fields of its responses that no client gets.
pub(crate) const HANDOFF_ANSWERS: [&str; 6] = [
    "x-sendfile",
    "x-accel-redirect",
    "x-accel-buffering",
    "x-accel-charset",
    "x-accel-expires",
    "x-accel-limit-rate",
];

/// Whether a field of an application's response is about the body that a file replaces, or about the file itself.
pub(crate) fn is_of_body(name: &[u8]) -> bool {
    const OF_BODY: [&[u8]; 11] = [
        b"accept-ranges",
        b"content-digest",
        b"content-md5",
        b"content-range",
        b"date",
        b"digest",
        b"etag",
        b"last-modified",
        b"repr-digest",
        b"trailer",
        SENDFILE,
    ];
    let name = name.to_ascii_lowercase();
    OF_BODY.contains(&&name[..]) || name.starts_with(b"x-accel-")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn handoff() -> Handoff {
        Handoff::new(&config::Sendfile {
            roots: vec!["/srv/storage".into(), "/srv/storage/private/".into(), "/srv/100%".into()],
            accel: BTreeMap::from([
                ("/protected/".to_owned(), "/srv/files".into()),
                ("/p".to_owned(), "/srv/p".into()),
            ]),
        })
    }

    fn locate(named: NamedFile) -> Option<(String, String)> {
        let handoff = handoff();
        let (folder, path) = handoff.locate(&named)?;
        Some((folder.config.root.display().to_string(), String::from_utf8_lossy(&path).into_owned()))
    }

    #[test]
    fn a_named_file_is_in_one_of_the_folders() {
        for (path, wanted) in [
            ("/srv/storage/a/b.pdf", Some(("/srv/storage", "/a/b.pdf"))),
            ("/srv/storage/private/c", Some(("/srv/storage/private/", "/c"))),
            ("/srv/storage/a%2fb", Some(("/srv/storage", "/a%252fb"))),
            ("/srv/100%/x%", Some(("/srv/100%", "/x%25"))),
            ("/srv/storage/../storage/x", Some(("/srv/storage", "/x"))),
            ("/srv/storage/../secret", None),
            ("/srv/storages/x", None),
            ("/etc/passwd", None),
            ("srv/storage/x", None),
            ("", None),
        ] {
            let wanted = wanted.map(|(folder, path)| (folder.to_owned(), path.to_owned()));
            assert_eq!(locate(NamedFile::Path(path.into())), wanted, "{path}");
        }
        for (url, wanted) in [
            ("/protected/a%20b.pdf?x", Some(("/srv/files", "/a b.pdf"))),
            ("/p/x", Some(("/srv/p", "/x"))),
            ("/protected/../p/x", Some(("/srv/p", "/x"))),
            ("/protected%2f..%2f..%2fetc/passwd", None),
            ("/other/x", None),
            ("@named", None),
            ("http://a/protected/x", None),
        ] {
            let wanted = wanted.map(|(folder, path)| (folder.to_owned(), path.to_owned()));
            assert_eq!(locate(NamedFile::Url(url.into())), wanted, "{url}");
        }
    }

    #[test]
    fn an_application_is_told_how_to_name_files() {
        let accel = BTreeMap::from([("/protected".to_owned(), "/srv/files/".into())]);
        let of_accel = config::Sendfile { roots: Vec::new(), accel };
        let told = |config: &config::Sendfile| {
            let fields = handoff_fields(config);
            fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
        };
        assert_eq!(
            told(&of_accel),
            ["X-Sendfile-Type: X-Accel-Redirect", "X-Accel-Mapping: /srv/files/=/protected/"]
        );
        let both = config::Sendfile { roots: vec!["/srv".into()], ..of_accel };
        assert_eq!(told(&both), ["X-Sendfile-Type: X-Sendfile", "X-Accel-Mapping: /srv/files/=/protected/"]);
        let of_roots = config::Sendfile { accel: BTreeMap::new(), ..both };
        assert_eq!(told(&of_roots), ["X-Sendfile-Type: X-Sendfile"]);
    }
}
