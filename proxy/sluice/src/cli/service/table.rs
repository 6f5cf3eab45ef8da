//! The table of `list`, identical to kamal-proxy's output.

use std::fmt::Write;

use sluice_core::service::api::{ListResponse, Listed};

const PLAIN: &str = "";
const ITALIC: &str = "3;94";
const BOLD: &str = "1;34";

/// The services as a table, sorted by name. Without colours for pipes and files.
pub(crate) fn table(response: &ListResponse, coloured: bool) -> String {
    let mut rows = vec![["Service", "Host", "Path", "Target", "State", "TLS"].map(str::to_owned)];
    for (name, Listed { host, path, tls, target, state }) in &response.services {
        let tls = if *tls { "yes" } else { "no" };
        rows.push([name, host, path, target, state, tls].map(str::to_owned));
    }
    // Lengths in bytes, as in Go.
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut table = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let style = match (number, column) {
                (0, _) => ITALIC,
                (_, 0) => BOLD,
                _ => PLAIN,
            };
            let pad = widths[column] - cell.len();
            // Writing into a String cannot fail.
            let _ = match coloured {
                true => write!(table, "\x1b[{style}m{cell}\x1b[0m{:pad$}  ", ""),
                false => write!(table, "{cell}{:pad$}  ", ""),
            };
        }
        if !coloured {
            table.truncate(table.trim_end_matches(' ').len());
        }
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_identical_to_kamal_proxys() {
        let listed = |host: &str, state: &str| Listed {
            host: host.to_owned(),
            path: "/".to_owned(),
            tls: false,
            target: "127.0.0.1:1".to_owned(),
            state: state.to_owned(),
        };
        let services =
            [("b".to_owned(), listed("*", "stopped")), ("d".to_owned(), listed("*.x.com", "running"))];
        let response = ListResponse { services: services.into_iter().collect() };
        // Printed by kamal-proxy 0.9.2.
        let wanted = "\x1b[3;94mService\x1b[0m  \x1b[3;94mHost\x1b[0m     \x1b[3;94mPath\x1b[0m  \x1b[3;94mTarget\x1b[0m       \x1b[3;94mState\x1b[0m    \x1b[3;94mTLS\x1b[0m  \n\
            \x1b[1;34mb\x1b[0m        \x1b[m*\x1b[0m        \x1b[m/\x1b[0m     \x1b[m127.0.0.1:1\x1b[0m  \x1b[mstopped\x1b[0m  \x1b[mno\x1b[0m   \n\
            \x1b[1;34md\x1b[0m        \x1b[m*.x.com\x1b[0m  \x1b[m/\x1b[0m     \x1b[m127.0.0.1:1\x1b[0m  \x1b[mrunning\x1b[0m  \x1b[mno\x1b[0m   \n";
        assert_eq!(table(&response, true), wanted);
        let plain = "Service  Host     Path  Target       State    TLS\n\
                     b        *        /     127.0.0.1:1  stopped  no\n\
                     d        *.x.com  /     127.0.0.1:1  running  no\n";
        assert_eq!(table(&response, false), plain);
    }
}
