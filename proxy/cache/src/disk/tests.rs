//! The files by themselves.
#![allow(clippy::unwrap_used)]

use std::fs;

use bytes::Bytes;
use sluice_config::Cache;

use super::folder::Folder;
use super::format::{self, FileName};
use crate::stored::StoredResponse;
use crate::tests::{admitted, request};

fn stored(fields: &str, body: &'static [u8]) -> StoredResponse {
    let admission = admitted(&request("Accept: a\r\n"), 200, fields, &Cache::default()).unwrap();
    let room = crate::Store::new("a", &Cache::default()).room(Some(body.len() as u64)).unwrap();
    let stored = admission.complete(Bytes::from_static(body), room).unwrap().stored;
    std::sync::Arc::into_inner(stored).unwrap()
}

fn file() -> Vec<u8> {
    let first =
        stored("Cache-Control: max-age=60\r\nVary: Accept\r\nCache-Tag: x\r\nETag: \"1\"\r\n", b"one");
    let second = stored("Cache-Control: max-age=60, stale-if-error=9\r\n", b"");
    format::encode(b"key", [&first, &second].into_iter()).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let read = format::decode(file(), b"key").unwrap();
    let first =
        stored("Cache-Control: max-age=60\r\nVary: Accept\r\nCache-Tag: x\r\nETag: \"1\"\r\n", b"one");
    let fields = |stored: &StoredResponse| {
        stored.head().fields().map(|field| (field.name.to_vec(), field.value.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(fields(&read[0]), fields(&first));
    assert_eq!((&read[0].vary, read[0].times, read[0].rules), (&first.vary, first.times, first.rules));
    assert_eq!((&read[0].body()[..], &read[0].tags), (&first.body()[..], &first.tags));
    assert_eq!((read.len(), read[1].body().len(), read[1].rules.if_error_ms), (2, 0, Some(9000)));
}

#[test]
fn a_file_with_another_byte_is_not_read() {
    let file = file();
    for at in 0..file.len() {
        let mut other = file.clone();
        other[at] ^= 1 << (at % 8);
        assert!(format::decode(other, b"key").is_none(), "{at}");
        assert!(format::decode(file[..at].to_vec(), b"key").is_none(), "{at}");
    }
    assert!(format::decode([&file[..], b"x"].concat(), b"key").is_none());
    assert!(format::decode(file, b"other").is_none(), "another key with the same hash");
}

#[test]
fn names_of_files_are_read_back() {
    for key in [&b""[..], b"a", b"route\0host\0/target"] {
        let name = FileName::of(key);
        let (folder, file) = name.parts();
        assert_eq!(FileName::from_parts(&folder, &file), Some(name), "{folder}/{file}");
    }
    for (folder, file) in [("a", "b"), ("zz", "00"), ("00", "lock"), ("0", "+123")] {
        assert_eq!(FileName::from_parts(folder, file), None, "{folder}/{file}");
    }
}

#[test]
fn a_folder_of_another_boot_begins_empty_unless_it_was_closed() {
    for (boot, is_closed, is_kept) in
        [(None, false, true), (None, true, true), (Some("other"), false, false), (Some("other"), true, true)]
    {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), "pages");
        let name = FileName::of(b"key");
        {
            let open = folder.open(&|| {}).unwrap().unwrap();
            open.write(name, b"content").unwrap();
            fs::write(folder.path().join("mine.txt"), "kept").unwrap();
            fs::write(folder.path().join("new-year.txt"), "kept").unwrap();
            fs::create_dir(folder.path().join("ab")).unwrap();
            fs::write(folder.path().join("ab/mine.txt"), "kept").unwrap();
            fs::write(folder.path().join("cd"), "kept").unwrap();
            assert!(folder.open(&|| {}).unwrap().is_none(), "two have it");
            if is_closed {
                open.sync().unwrap();
                open.note_closed().unwrap();
            }
        }
        let file = folder.path().join("state.json");
        if let Some(boot) = boot {
            let state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let own = state["boot"].as_str().unwrap();
            fs::write(&file, state.to_string().replace(own, boot)).unwrap();
            assert_ne!(own, boot);
        }
        let open = folder.open(&|| {}).unwrap().unwrap();
        assert_eq!(folder.read(name, 100).unwrap().is_some(), is_kept, "{boot:?} {is_closed}");
        for foreign in ["mine.txt", "new-year.txt", "ab/mine.txt", "cd"] {
            assert!(folder.path().join(foreign).exists(), "{foreign}");
        }
        let found: usize = open.parts().unwrap().iter().map(|part| open.files_of(part).unwrap().len()).sum();
        assert_eq!(found, usize::from(is_kept));
        // It is in use: after a crash of the machine, what is there now cannot be trusted.
        let state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(state["is_closed"], false);
    }
}

#[test]
fn a_damaged_state_is_no_state() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path(), "pages");
    folder.open(&|| {}).unwrap().unwrap().write(FileName::of(b"key"), b"content").unwrap();
    fs::write(folder.path().join("state.json"), "{").unwrap();
    drop(folder.open(&|| {}).unwrap().unwrap());
    assert!(folder.read(FileName::of(b"key"), 100).unwrap().is_none());
}

#[test]
fn a_folder_that_is_not_trusted_begins_empty() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path(), "pages");
    let open = folder.open(&|| {}).unwrap().unwrap();
    open.write(FileName::of(b"key"), b"content").unwrap();
    folder.distrust().unwrap();
    // It is not trusted by an end in order either.
    open.note_closed().unwrap();
    drop(open);
    drop(folder.open(&|| {}).unwrap().unwrap());
    assert!(folder.read(FileName::of(b"key"), 100).unwrap().is_none());
}

#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path(), "pages");
    let open = folder.open(&|| {}).unwrap().unwrap();
    open.write(FileName::of(b"key"), b"content").unwrap();
    let (part, name) = FileName::of(b"key").parts();
    let file = folder.path().join(part).join(name);
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(
        folder.read(FileName::of(b"key"), 100).is_err() && folder.describe(FileName::of(b"key")).is_err()
    );
}
