//! `sluice run … -- COMMAND`: an application that starts and ends with sluice.

use std::fs;

use nix::sys::signal::Signal;

use crate::process::{busy, gated};
use crate::support::{Origin, Setup, poll};

/// A setup whose application is a shell with this script. Its folder is $1.
fn running(origin: &Origin, script: &str) -> (Setup, String) {
    let setup = Setup::to_origin(origin);
    let notes = setup.file("notes", "").display().to_string();
    let setup =
        ["--", "sh", "-c", script, "sh", &notes].iter().fold(setup, |setup, word| setup.argument(word));
    (setup, notes)
}

/// Says what happens to it, and goes on until it is told to end, or until sluice is gone.
const PATIENT: &str = r#"trap 'echo told >> "$1"; exit 0' TERM
trap 'echo interrupted >> "$1"' INT
echo started >> "$1"
while kill -0 $PPID; do sleep 0.05; done"#;

fn notes_say(notes: &str, wanted: &str) {
    poll(wanted, || (fs::read_to_string(notes).unwrap() == wanted).then_some(()));
}

#[test]
fn it_is_told_to_end_once_its_requests_have_ended() {
    let (origin, go) = gated();
    let (setup, notes) = running(&origin, PATIENT);
    let Some(mut proxy) = setup.start() else { return };
    notes_say(&notes, "started\n");
    let mut client = busy(&proxy, &origin);
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("draining");
    notes_say(&notes, "started\n");
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "/busy");
    assert_eq!(proxy.wait().code(), Some(0));
    notes_say(&notes, "started\ntold\n");
}

#[test]
fn sluice_ends_with_it_and_has_its_status() {
    for (end, code) in [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)] {
        let origin = Origin::saying("served");
        let script = format!("while [ ! -s \"$1\" ] && kill -0 $PPID; do sleep 0.05; done; {end}");
        let (setup, notes) = running(&origin, &script);
        let Some(mut proxy) = setup.start() else { return };
        assert_eq!(proxy.get("/").text(), "served");
        fs::write(notes, "end").unwrap();
        assert_eq!(proxy.wait().code(), Some(code), "{end}");
        proxy.wait_for("the application has ended, and so does sluice");
    }
}

#[test]
fn it_is_not_in_the_group_that_a_terminal_interrupts() {
    let origin = Origin::saying("served");
    // Its first field is the process, the fifth its group.
    let script = r#"notes=$1; set -- $(cat /proc/$$/stat); echo "$1 $5" > "$notes"
while kill -0 $PPID; do sleep 0.05; done"#;
    let (setup, notes) = running(&origin, script);
    let Some(proxy) = setup.start() else { return };
    let said =
        poll("its group", || Some(fs::read_to_string(&notes).unwrap()).filter(|said| said.ends_with('\n')));
    let (process, group) = said.trim().split_once(' ').unwrap();
    assert_eq!(process, group);
    drop(proxy);
}

#[test]
fn one_that_ends_during_the_start_ends_sluice() {
    let origin = Origin::saying("served");
    let (setup, _) = running(&origin, "exit 5");
    assert_eq!(setup.fails().0, Some(5));
}

#[test]
fn one_that_cannot_be_started_is_named() {
    let origin = Origin::saying("served");
    let setup = Setup::to_origin(&origin).argument("--").argument("/no/such/program");
    let (code, said) = setup.fails();
    assert_eq!(code, Some(1));
    assert!(said.contains("/no/such/program cannot be started: No such file or directory"), "{said}");
}

#[test]
fn an_upgrade_would_start_it_twice() {
    let origin = Origin::saying("served");
    let (setup, notes) = running(&origin, PATIENT);
    let Some(mut proxy) = setup.start() else { return };
    let (code, said) = proxy.command("upgrade", &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("has started its application"), "{said}");
    assert_eq!(proxy.reload(fs::read_to_string(proxy_file(&notes)).unwrap()).0, Some(0));
    assert_eq!(proxy.get("/").text(), "served");
    proxy.signal(Signal::SIGINT);
    assert_eq!(proxy.wait().code(), Some(0));
    notes_say(&notes, "started\ntold\n");
}

/// The configuration beside the notes.
fn proxy_file(notes: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(notes).parent().unwrap();
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "json")).unwrap()
}
