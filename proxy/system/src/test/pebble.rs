//! Pebble for the tests of ACME certificates: `cargo xtask test acme`, and part of a whole run if Go is available.

use sluice_testkit::pinned;
use sluice_testkit::process::find_program;
use sluice_testkit::tally::Tally;

/// Part of the tests' names.
const SUITE: &str = "acme";
const PROGRAMS: [(&str, &str); 2] =
    [("SLUICE_TEST_PEBBLE", "pebble"), ("SLUICE_TEST_CHALLTESTSRV", "pebble-challtestsrv")];

/// Environment variables with the paths of the authority and its name server; empty if they are not requested or not
/// available, in which case the tests are skipped.
pub(super) fn environment(tally: &mut Tally) -> Vec<(&'static str, String)> {
    if !tally.filter().is_none_or(|filter| filter.contains(SUITE)) {
        return Vec::new();
    }
    if find_program("go").is_none() {
        tally.skip(SUITE, 1, "Pebble is built by go, which is missing (apt-get install golang-go)");
        return Vec::new();
    }
    let mut found = Vec::new();
    for (variable, name) in PROGRAMS {
        match pinned::tool(name) {
            Ok(program) => found.push((variable, program.display().to_string())),
            Err(error) => {
                tally.skip(SUITE, 1, &format!("{name} is not available: {error:#}"));
                return Vec::new();
            }
        }
    }
    found
}
