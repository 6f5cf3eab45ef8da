//! Parts of an nginx configuration that depend on how nginx was built.

/// A directive for each built-in module; nginx would refuse one for a missing module.
pub fn temp_paths(built: &str) -> String {
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .filter(|module| !built.contains(&format!("--without-http_{module}_module")))
        .map(|module| format!("{module}_temp_path @FOLDER@/{module};"))
        .collect::<Vec<_>>()
        .join("\n    ")
}
