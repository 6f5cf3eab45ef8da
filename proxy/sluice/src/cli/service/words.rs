//! clap's errors in the words of cobra and pflag, which scripts may look for.

use std::error::Error;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Help, for standard output; not a failure.
    Help(String),
    /// Lines of an error, the first one without `Error: `.
    Error(Vec<String>),
}

/// The message of cobra; `arguments` are those of the process, without its name.
pub(crate) fn refusal(error: &clap::Error, program: &str, arguments: &[String]) -> Refusal {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingSubcommand => Refusal::Help(error.render().to_string()),
        ErrorKind::InvalidSubcommand => unknown_command(error, program),
        _ => Refusal::Error(vec![flag(error, arguments)]),
    }
}

fn flag(error: &clap::Error, arguments: &[String]) -> String {
    // Formatted as `--name <VALUE>`.
    let context = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let name = context.split([' ', '=', '[']).next().unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if name.starts_with("--") => format!("unknown flag: {name}"),
        ErrorKind::UnknownArgument => {
            let short = name.chars().nth(1).unwrap_or('-');
            let given = arguments.iter().find(|argument| {
                argument.starts_with('-') && !argument.starts_with("--") && argument.contains(short)
            });
            format!("unknown shorthand flag: {short:?} in {}", given.map_or(name, String::as_str))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("flag needs an argument: {name}"),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            format!("invalid argument {value:?} for {name:?} flag: {why}")
        }
        _ => error.render().to_string().trim_end().trim_start_matches("error: ").to_owned(),
    }
}

fn unknown_command(error: &clap::Error, program: &str) -> Refusal {
    let given = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let mut lines = vec![format!("unknown command {given:?} for {program:?}")];
    let near = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    };
    if !near.is_empty() {
        lines.extend([String::new(), "Did you mean this?".to_owned()]);
        lines.extend(near.iter().map(|name| format!("\t{name}")));
        lines.push(String::new());
    }
    lines.push(format!("Run '{program} --help' for usage."));
    Refusal::Error(lines)
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}
