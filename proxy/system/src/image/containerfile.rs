//! The image settings of a stage of a Containerfile: as much of the format as ours uses.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// A stage: its name, and the `config` of an OCI image.
pub(crate) struct Stage {
    /// The name in `FROM … AS`.
    pub(crate) name: String,
    /// User, Env, Entrypoint, Cmd and the rest: OCI image specification, `config`.
    pub(crate) config: Value,
}

impl Stage {
    /// Reads the stage `name`.
    ///
    /// # Errors
    /// When there is none, or it contains an unsupported instruction.
    pub(super) fn read(text: &str, name: &str) -> Result<Self> {
        let mut lines = text.lines().map(str::trim);
        lines.find(|line| is_stage(line, name)).with_context(|| format!("no stage is called {name}"))?;
        let mut config = Map::new();
        for line in lines.take_while(|line| !line.starts_with("FROM ")) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (instruction, rest) = line.split_once(' ').with_context(|| line.to_owned())?;
            apply(&mut config, instruction, rest.trim()).with_context(|| line.to_owned())?;
        }
        Ok(Self { name: name.to_owned(), config: config.into() })
    }

    /// A string of the config.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.config[key].as_str().unwrap_or_default()
    }

    /// A list of strings of the config.
    pub(crate) fn list(&self, key: &str) -> Vec<String> {
        let items = self.config[key].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

fn is_stage(line: &str, name: &str) -> bool {
    line.strip_prefix("FROM scratch AS ") == Some(name)
}

fn apply(config: &mut Map<String, Value>, instruction: &str, rest: &str) -> Result<()> {
    match instruction {
        // The root folder, which the same script creates here.
        "COPY" => {}
        "LABEL" => {
            let (key, value) = rest.split_once('=').context("a label is KEY=VALUE")?;
            object(config, "Labels").insert(key.to_owned(), unquoted(value).into());
        }
        "ENV" => {
            let items = config.entry("Env").or_insert_with(|| json!([]));
            items.as_array_mut().context("Env is a list")?.push(unquoted(rest).into());
        }
        "EXPOSE" => {
            object(config, "ExposedPorts").insert(format!("{rest}/tcp"), json!({}));
        }
        "USER" => set(config, "User", rest.into()),
        "WORKDIR" => set(config, "WorkingDir", rest.into()),
        "STOPSIGNAL" => set(config, "StopSignal", rest.into()),
        "ENTRYPOINT" => set(config, "Entrypoint", serde_json::from_str(rest)?),
        "CMD" => set(config, "Cmd", serde_json::from_str(rest)?),
        "HEALTHCHECK" => set(config, "Healthcheck", health_check(rest)?),
        other => bail!("{other} is not supported"),
    }
    Ok(())
}

fn set(config: &mut Map<String, Value>, key: &str, value: Value) {
    config.insert(key.to_owned(), value);
}

fn object<'a>(config: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = config.entry(key).or_insert_with(|| json!({}));
    value.as_object_mut().expect("only objects are added")
}

fn unquoted(value: &str) -> String {
    value.replace('"', "")
}

/// Docker's extension of the image's config; times are nanoseconds.
fn health_check(rest: &str) -> Result<Value> {
    let (flags, command) = rest.split_once("CMD ").context("HEALTHCHECK … CMD […]")?;
    let mut command: Vec<String> = serde_json::from_str(command)?;
    command.insert(0, "CMD".to_owned());
    let mut check = json!({"Test": command});
    for flag in flags.split_whitespace() {
        let (name, value) = flag.trim_start_matches("--").split_once('=').context("--NAME=VALUE")?;
        let seconds = || -> Result<u64> { Ok(value.trim_end_matches('s').parse::<u64>()? * 1_000_000_000) };
        match name {
            "interval" => check["Interval"] = seconds()?.into(),
            "timeout" => check["Timeout"] = seconds()?.into(),
            "start-period" => check["StartPeriod"] = seconds()?.into(),
            "retries" => check["Retries"] = value.parse::<u64>()?.into(),
            other => bail!("{other} is not supported"),
        }
    }
    Ok(check)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FILE: &str = "FROM x AS build\nRUN make\n\nFROM scratch AS a\n# why\nCOPY --from=build /r/ /\nUSER 7\n\
        LABEL t=\"a b\"\nENV A=1\nENV B=2\nEXPOSE 80\nCMD [\"x\", \"y\"]\n\nFROM scratch AS b\n\
        HEALTHCHECK --interval=2s --retries=3 CMD [\"ok\"]\n";

    #[test]
    fn a_stage_ends_where_the_next_begins() {
        let stage = Stage::read(FILE, "a").unwrap();
        let expected = json!({"User": "7", "Labels": {"t": "a b"}, "Env": ["A=1", "B=2"],
            "ExposedPorts": {"80/tcp": {}}, "Cmd": ["x", "y"]});
        assert_eq!(stage.config, expected);
        assert_eq!((stage.text("User"), stage.list("Cmd")), ("7", vec!["x".to_owned(), "y".to_owned()]));
    }

    #[test]
    fn health_checks_use_dockers_format() {
        let expected = json!({"Healthcheck":
            {"Test": ["CMD", "ok"], "Interval": 2_000_000_000_u64, "Retries": 3}});
        assert_eq!(Stage::read(FILE, "b").unwrap().config, expected);
    }

    #[test]
    fn unknown_instructions_are_refused() {
        assert!(Stage::read(FILE, "c").is_err());
        assert!(Stage::read("FROM scratch AS a\nADD x y\n", "a").is_err());
    }
}
