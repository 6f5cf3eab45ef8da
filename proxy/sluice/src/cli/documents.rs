//! The commands in the documents: each `sluice` and `kamal-proxy` command line in a block of commands must parse, and each
//! `cargo xtask` command must exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::Cli;
use super::kamal::KamalProxy;

/// Commands of `cargo xtask`; see xtask/src/main.rs.
const XTASK: [&str; 12] = [
    "run",
    "doctor",
    "lint",
    "tidy",
    "test",
    "ci",
    "bench",
    "trace",
    "package",
    "build-ebpf",
    "docs",
    "soak",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document, with its name.
fn documents() -> Vec<(String, String)> {
    let mut folders = vec![root().join("docs"), root().join("bench"), root().join("scripts")];
    let mut files: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("results") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

/// The command lines of a document: every line of `sh` blocks, and those with a prompt of `console` blocks.
fn lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(opening) = line.strip_prefix("```") {
            language = if language.is_some() { None } else { Some(opening) };
            continue;
        }
        let command = match language {
            Some("sh") => Some(line),
            Some("console") => line.strip_prefix("$ "),
            _ => None,
        };
        found.extend(command.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned));
    }
    // A line that ends with a backslash continues.
    let mut joined: Vec<String> = Vec::new();
    for line in found {
        match joined.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => {
                last.pop();
                last.push_str(&line);
            }
            None => joined.push(line),
        }
    }
    joined
}

/// The simple commands of a line, as words: quotes are taken off, what follows `#` is left out, and pipes, `&&`, `;` and
/// `$(` separate commands.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote, mut is_word) = (String::new(), None, false);
    let end = |commands: &mut Vec<Vec<String>>, word: &mut String, is_word: &mut bool| {
        if std::mem::take(is_word) {
            commands.last_mut().unwrap().push(std::mem::take(word));
        }
    };
    for char in line.chars() {
        match (quote, char) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), other) => word.push(other),
            (None, '\'' | '"') => {
                quote = Some(char);
                is_word = true;
            }
            (None, '#') if !is_word => break,
            (None, '|' | ';' | '&' | '(' | ')' | '>' | '<') => {
                if char == '>' || char == '<' {
                    // A redirection ends the words that are arguments.
                    word.retain(|c| !c.is_ascii_digit());
                    is_word = !word.is_empty();
                }
                end(&mut commands, &mut word, &mut is_word);
                commands.push(if char == '>' || char == '<' {
                    vec!["redirected".to_owned()]
                } else {
                    Vec::new()
                });
            }
            (None, blank) if blank.is_whitespace() => end(&mut commands, &mut word, &mut is_word),
            (None, other) => {
                word.push(other);
                is_word = true;
            }
        }
    }
    end(&mut commands, &mut word, &mut is_word);
    for command in &mut commands {
        // Assignments, and what runs another command.
        let is_before = |word: &String| {
            ["sudo", "-E", "exec", "docker", "podman", "time"].contains(&word.as_str())
                || word
                    .split_once('=')
                    .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        let skip = command.iter().take_while(|word| is_before(word)).count();
        command.drain(..skip);
        // `podman exec NAME COMMAND`, and a container that is called like its command.
        if command.len() > 1 && command[0] == "sluice" && command[1] == "sluice" {
            command.remove(0);
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

fn fault(words: &[String]) -> Option<String> {
    let outcome = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["sluice", ..] => Cli::try_parse_from(words).map(drop),
        ["kamal-proxy", ..] => KamalProxy::try_parse_from(words).map(drop),
        ["cargo", "xtask", command, ..] if !XTASK.contains(command) => {
            return Some("no such command".to_owned());
        }
        _ => Ok(()),
    };
    let error = outcome.err()?;
    (!matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)).then(|| error.to_string())
}

#[test]
fn every_command_in_the_documents_parses() {
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, text) in documents() {
        for line in lines(&text) {
            for words in commands(&line) {
                count += usize::from(words[0] == "sluice");
                faults.extend(fault(&words).map(|fault| format!("{name}: {line}\n{fault}")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 40, "{count} commands");
}

#[test]
fn lines_are_divided_into_commands() {
    let words = |line: &str| commands(line).into_iter().map(|words| words.join("_")).collect::<Vec<_>>();
    assert_eq!(
        words("A=1 sluice logs -f --host '*.a b' | head # why"),
        ["sluice_logs_-f_--host_*.a b", "head"]
    );
    assert_eq!(
        words("sluice pause web && x; sluice resume web"),
        ["sluice_pause_web", "x", "sluice_resume_web"]
    );
    assert_eq!(words("sluice schema >file"), ["sluice_schema", "redirected_file"]);
}
