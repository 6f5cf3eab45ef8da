//! Files that a configuration names and that cannot be used, or a configuration file that cannot be read.

use super::super::{ConfigError, load};
use super::GOOD;

fn load_error(directory: &std::path::Path, lines: &str) -> ConfigError {
    let file = directory.join("c.yaml");
    std::fs::write(&file, format!("{GOOD}{lines}")).unwrap();
    load(&file, &[]).unwrap_err()
}

#[test]
fn load_reports_files_that_cannot_be_used() {
    let directory = std::env::temp_dir().join(format!("sluice-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("short"), "123456789012345 \n").unwrap();
    std::fs::write(directory.join("odd"), "1234567890 123456\n").unwrap();
    let shown = directory.display();
    for (lines, expected) in [
        (format!("error_pages: {{503: {shown}/none}}"), "cannot be read: No such file"),
        (format!("error_pages: {{503: {shown}}}"), "is not a file"),
        (format!("access_log: {shown}/none/log"), "does not exist; create it first"),
        (format!("access_log: {shown}"), "is a directory"),
        (format!("debug_token_file: {shown}/none"), "cannot be read: No such file"),
        (format!("debug_token_file: {shown}"), "is not a file"),
        (format!("debug_token_file: {shown}/short"), "must contain a token of 16 to 256 bytes"),
        (format!("debug_token_file: {shown}/odd"), "not visible ASCII"),
        (format!("admin_token_file: {shown}/none"), "none does not exist; create it first"),
        (
            format!("  b: {{endpoints: ['a:1'], state_file: {shown}/none/s}}\nroutes: []"),
            "does not exist; create it first",
        ),
        (
            format!(
                "buffers: {{spool_directory: {shown}/none}}\nroutes: [{{cluster: api, buffer_requests: on}}]"
            ),
            "does not exist; create it first",
        ),
        (
            "buffers: {spool_directory: /proc}\nroutes: [{cluster: api, buffer_responses: on}]".to_owned(),
            "cannot create a file in /proc",
        ),
    ] {
        let error = load_error(&directory, &lines).to_string();
        assert!(error.contains("c.yaml:4: ") && error.contains(expected), "{lines}: {error}");
    }
    // Nothing is buffered, or not in files.
    for rest in ["", "spool_bytes_max: 0}\nroutes: [{cluster: api, buffer_requests: on}]\nkernel: {"] {
        let file = directory.join("c.yaml");
        std::fs::write(&file, format!("{GOOD}buffers: {{spool_directory: {shown}/none, {rest}}}")).unwrap();
        load(&file, &[]).unwrap();
    }
    std::fs::write(directory.join("c.yaml"), b"a: \xff").unwrap();
    let error = load(&directory.join("c.yaml"), &[]).unwrap_err();
    assert_eq!(error.problems[0].message, "byte 4 is not UTF-8; save the file as UTF-8");
    assert!(load(&directory.join("none"), &[]).unwrap_err().to_string().contains("cannot be opened"));
    assert!(load(&directory, &[]).unwrap_err().to_string().contains("cannot be read"));
    std::fs::remove_dir_all(&directory).unwrap();
}
