//! What a configuration of nginx needs that depends on how nginx was built.

/// A directive for each module that was built in; one for a module left out would be refused.
pub fn temp_paths(built: &str) -> String {
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .filter(|module| !built.contains(&format!("--without-http_{module}_module")))
        .map(|module| format!("{module}_temp_path @FOLDER@/{module};"))
        .collect::<Vec<_>>()
        .join("\n    ")
}
