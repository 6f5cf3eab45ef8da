//! `sluice schema`: the configuration as a JSON Schema, each key described by its comment in `config/sluice.yaml`.

use std::collections::HashMap;

use super::keys::{self, Key, elsewhere};

/// The schema, with a final newline.
pub(crate) fn schema() -> String {
    let keys = keys::all();
    let by_path: HashMap<&str, &Key> = keys.iter().map(|key| (key.path.as_str(), key)).collect();
    let describe = |path: &str| {
        let key = by_path.get(path).or_else(|| by_path.get(elsewhere(path)?.as_str()))?;
        Some(description(key)).filter(|text| !text.is_empty())
    };
    format!("{:#}\n", sluice_config::schema(describe))
}

fn description(key: &Key) -> String {
    let is_plain = !key.value.is_empty() && key.is_default && !key.text.starts_with("none");
    let default = if is_plain { format!("Default: {}. ", key.value) } else { String::new() };
    let words = key.text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{default}{words}").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file that editors use. To update it: `sluice schema >config/sluice.schema.json`.
    const COMMITTED: &str = include_str!("../../../../config/sluice.schema.json");

    #[test]
    fn the_committed_schema_is_current() {
        assert!(COMMITTED == schema(), "run `sluice schema >config/sluice.schema.json`");
    }

    #[test]
    fn most_keys_have_a_description() {
        let schema = schema();
        let (keys, texts) = (schema.matches("\"null\"").count(), schema.matches("\"description\"").count());
        assert!(texts * 10 > keys * 8, "{texts} of {keys}");
    }
}
