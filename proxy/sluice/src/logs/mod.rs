//! `sluice logs`: shows the access log in readable form. Reads the output of `access_log`, from a file or a pipe;
//! changes nothing.

mod filter;
mod line;
mod show;
mod source;
#[cfg(test)]
mod tests;

use crate::usage::{DEFAULT_FILE, UsageError};
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use filter::Filter;
use show::Printer;
use sluice_config::{self as config, LogOutput, Override};
use source::Follower;

/// An error while reading or writing.
const EXIT_RUNTIME: u8 = 1;
/// The command line or the configuration is wrong.
const EXIT_CONFIG: u8 = 2;
/// Earlier lines shown when following.
const FOLLOW_LINES: usize = 10;

/// Arguments of `sluice logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The configuration file that names the access log [default on a terminal: /etc/sluice/sluice.yaml]
    #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Set any key by its dotted path, such as access_log=/var/log/sluice.log
    #[arg(long = "set", value_name = "PATH=VALUE", requires = "config")]
    sets: Vec<Override>,
    /// The access log; - is standard input, which is also the default if it is not a terminal
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Follow the file, also after a rotation
    #[arg(long, short)]
    follow: bool,
    /// Show only this many of the last matching lines [default: all, or 10 with --follow]
    #[arg(long = "lines", short = 'n', value_name = "N")]
    lines: Option<usize>,
    /// When to use colours: auto (on a terminal without NO_COLOR), always, or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: When,
    #[command(flatten)]
    filter: Filter,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// Shows the access log.
pub(crate) fn run(args: &LogsArgs) -> ExitCode {
    let path = match args.path() {
        Ok(path) => path,
        Err(error) => return fail(&error.to_string(), EXIT_CONFIG),
    };
    let stdout = io::stdout().lock();
    let colours = args.color.colours(stdout.is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let mut printer = Printer::new(io::BufWriter::new(stdout), args.filter.clone(), colours);
    let shown = match &path {
        Some(path) => show_file(path, args, &mut printer),
        None => show_input(BufReader::new(io::stdin().lock()), args.lines, &mut printer),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let name = path.map_or("standard input".to_owned(), |path| path.display().to_string());
            fail(&format!("{name}: {error}"), EXIT_RUNTIME)
        }
    }
}

/// A line of the access log as `sluice run` shows it on a terminal.
pub(crate) fn show_line(line: &[u8]) -> Vec<u8> {
    let colours = When::Auto.colours(true, std::env::var_os("NO_COLOR").as_deref());
    let mut printer = Printer::new(Vec::new(), Filter::default(), colours);
    // Writing to memory does not fail.
    let _ = printer.line(line);
    let mut shown = printer.into_inner();
    while shown.last() == Some(&b'\n') {
        shown.pop();
    }
    shown
}

impl LogsArgs {
    /// The file to read; `None` is standard input.
    fn path(&self) -> Result<Option<PathBuf>, UsageError> {
        if let Some(config) = &self.config {
            return self.configured(config).map(Some);
        }
        match &self.file {
            Some(path) if path.as_os_str() != "-" => Ok(Some(path.clone())),
            None if io::stdin().is_terminal() => {
                let config = Path::new(DEFAULT_FILE);
                if !config.exists() {
                    return Err("nothing to read; write --config or --file, or pipe an access log in".into());
                }
                self.configured(config).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The access log that the configuration `file` names.
    fn configured(&self, file: &Path) -> Result<PathBuf, UsageError> {
        let config = config::load(file, &self.sets).map_err(|error| error.to_string())?;
        match config.access_log.output {
            LogOutput::File(path) => Ok(path),
            LogOutput::Stdout => {
                Err("access_log: the log goes to standard output; pipe it into sluice logs, for \
                                      example: journalctl -u sluice -o cat | sluice logs"
                    .into())
            }
            LogOutput::Off => Err("access_log: the log is off; write a path".into()),
        }
    }
}

impl When {
    /// Whether to use colours; see <https://no-color.org> for the variable.
    fn colours(self, terminal: bool, no_color: Option<&std::ffi::OsStr>) -> bool {
        match self {
            When::Auto => terminal && no_color.is_none_or(std::ffi::OsStr::is_empty),
            When::Always => true,
            When::Never => false,
        }
    }
}

fn show_file(path: &Path, args: &LogsArgs, printer: &mut Printer<impl Write>) -> io::Result<()> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        // A pipe or a terminal cannot be read backwards or followed.
        return show_input(BufReader::new(file), args.lines, printer);
    }
    if !args.follow {
        match args.lines {
            Some(lines) => source::last(&mut file, lines, u64::MAX, printer)?,
            None => source::all(file, printer)?,
        }
        return printer.flush();
    }
    // A line that is still being written is shown once it is complete.
    let position = source::end_of_lines(&mut file)?;
    source::last(&mut file, args.lines.unwrap_or(FOLLOW_LINES), position, printer)?;
    printer.flush()?;
    let mut follower = Follower::new(path, file, position)?;
    loop {
        follower.read(printer)?;
        printer.flush()?;
        if source::wait()? {
            return Ok(());
        }
    }
}

/// Shows standard input to its end; line by line unless only the last lines are requested.
fn show_input(
    mut input: BufReader<impl Read>,
    last: Option<usize>,
    printer: &mut Printer<impl Write>,
) -> io::Result<()> {
    let mut kept = std::collections::VecDeque::new();
    let mut line = Vec::new();
    while source::next(&mut input, &mut line)? {
        match last {
            None => {
                printer.line(&line)?;
                // Flushed before a read that may block.
                if input.buffer().is_empty() {
                    printer.flush()?;
                }
            }
            Some(0) => {}
            Some(lines) if printer.wants(&line) => {
                if kept.len() == lines {
                    kept.pop_front();
                }
                kept.push_back(std::mem::take(&mut line));
            }
            Some(_) => {}
        }
    }
    kept.iter().try_for_each(|line| printer.line(line))?;
    printer.flush()
}

fn fail(message: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "sluice: {message}");
    ExitCode::from(code)
}
