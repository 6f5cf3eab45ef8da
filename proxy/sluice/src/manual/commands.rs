//! One page per command. Contains what clap does not know: exit codes, signals, files.

use std::io;

use clap::Command;
use clap_mangen::Man;

use super::roff::{list, section, text, title};

const DESCRIPTION: &str = "sluice accepts HTTP/1.1 and HTTP/2, with or without TLS, routes each request to \
                           a cluster of application servers, and streams in both directions. It is \
                           configured with one YAML file, described in sluice.yaml(5).";

const SIGNALS: [(&str, &str); 4] = [
    (
        "SIGTERM, SIGINT, SIGQUIT",
        "Drain: accept no new connections and finish running exchanges, for at most drain_timeout. A \
         second signal stops at once.",
    ),
    (
        "SIGHUP",
        "Read the configuration again, like sluice reload. A configuration with mistakes changes nothing; \
         the log contains the mistakes.",
    ),
    ("SIGUSR1", "Reopen the access log, after it was renamed."),
    ("SIGUSR2", "Upgrade to a new process, like sluice upgrade. The log contains the outcome."),
];

const EXIT_STATUS: [(&str, &str); 3] = [
    ("0", "Success; for run: sluice was stopped by a signal, and drained or reached drain_timeout."),
    ("1", "An error while running, or a failed check (doctor, healthcheck)."),
    ("2", "The command line or the configuration is wrong; all mistakes were printed."),
];

const ENVIRONMENT: [(&str, &str); 3] = [
    (
        "SLUICE_LOG, RUST_LOG",
        "Log filter, such as info, warn or sluice_control::health=debug; the first variable that is set is \
         used.",
    ),
    ("NOTIFY_SOCKET", "Socket for notifying the service manager of start and stop (sd_notify(3))."),
    ("LISTEN_FDS", "Sockets passed by the service manager; each is used for the listener with its address."),
];

const FILES: [(&str, &str); 2] = [
    ("/etc/sluice/sluice.yaml", "The configuration of the service, if sluice was installed as a package."),
    ("/run/sluice, /var/lib/sluice, /var/log/sluice", "Folders that the service may write to."),
];

/// Each page with its file name.
///
/// # Errors
/// Only when memory runs out.
pub(super) fn pages(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    // Without a version: clap would list it as an option of each command, which it is not.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, true, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, is_root: bool, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let man = Man::new(command.clone());
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut page = title(name, 1).into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if is_root {
        page.extend_from_slice(format!(".PP\n{}\n", text(DESCRIPTION)).as_bytes());
    }
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(end(is_root).as_bytes());
    pages.push((man.get_filename(), page));
    for sub in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        add(sub, false, pages)?;
    }
    Ok(())
}

/// The sections at the end of each page, and those at the end of the first only.
fn end(is_root: bool) -> String {
    let exit = section("EXIT STATUS", &list(EXIT_STATUS));
    if !is_root {
        return exit + &section("SEE ALSO", "\\fBsluice\\fR(1), \\fBsluice.yaml\\fR(5)\n");
    }
    let rest = [("SIGNALS", list(SIGNALS)), ("ENVIRONMENT", list(ENVIRONMENT)), ("FILES", list(FILES))];
    let rest: String = rest.iter().map(|(name, lines)| section(name, lines)).collect();
    exit + &rest + &section("SEE ALSO", "\\fBsluice.yaml\\fR(5)\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    use clap::CommandFactory;

    #[test]
    fn every_visible_command_has_a_page() {
        let pages = pages(Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["sluice.1", "sluice-run.1", "sluice-doctor.1", "sluice-healthcheck.1"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"sluice-man.1") && !names.contains(&"sluice-help.1"), "{names:?}");
        for (name, page) in &pages {
            let page = String::from_utf8_lossy(page);
            for part in ["\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH \"EXIT STATUS\"", "\n.SH \"SEE ALSO\""] {
                assert!(page.contains(part) || page.contains(&part.replace('"', "")), "{name} lacks {part}");
            }
        }
    }
}
