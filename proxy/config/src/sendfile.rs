//! `sendfile`: files that an application names in its response, for sluice to send.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::codec::{File, List, Own, keys};
use super::out::{Out, file};
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text;

/// Maximum number of folders of either kind.
const FOLDERS_MAX: usize = 100;

/// Where files may lie that an application names.
#[derive(Clone, Debug, PartialEq)]
pub struct Sendfile {
    /// Folders of the files that `X-Sendfile` names by their paths.
    pub roots: Vec<PathBuf>,
    /// Folders of the files that `X-Accel-Redirect` names by a URL, by the prefix of that URL.
    pub accel: BTreeMap<String, PathBuf>,
}

keys! { Sendfile, settle consistent {
    roots: Vec::new(), List(FOLDERS_MAX, File);
    accel: BTreeMap::new(), ACCEL;
}}

const ACCEL: Own<BTreeMap<String, PathBuf>> = Own {
    read: |item| Some(accel(item)),
    write: |folders| {
        let mut out = Out::default();
        folders.iter().for_each(|(prefix, folder)| out.put(prefix, file(folder)));
        out.done()
    },
    shape: || Shape::entries(Shape::TEXT, FOLDERS_MAX),
};

fn accel(item: &Item<'_>) -> BTreeMap<String, PathBuf> {
    let mut folders = BTreeMap::new();
    for (prefix, item) in item.entries(FOLDERS_MAX) {
        let checked = text::url_path(&prefix, false).and_then(|()| text::without_dots(&prefix));
        if let Err(message) = checked {
            item.mistake(message);
        } else if let Some(folder) = item.text() {
            folders.insert(prefix, folder.into());
        }
    }
    folders
}

/// An application names a file by its whole path, whatever the folder that sluice runs in.
fn consistent(sendfile: &mut Sendfile, fields: &mut Fields<'_>) {
    if fields.get("roots").is_none() && fields.get("accel").is_none() && !fields.is_broken() {
        fields.mistake("no folders; write roots, accel or both");
    }
    let roots = sendfile.roots.iter().map(|root| (fields.path.key("roots"), root));
    let accel = sendfile.accel.iter().map(|(prefix, folder)| (fields.path.key("accel").key(prefix), folder));
    for (path, folder) in roots.chain(accel).filter(|(_, folder)| !folder.is_absolute()) {
        let shown = quote(&folder.display().to_string());
        fields.problems.add(&path, format!("{shown} does not begin with /; write the whole path"));
    }
}
