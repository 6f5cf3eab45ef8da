//! A kernel in qemu, from boot to power-off, and its output.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sluice_testkit::process::bound;
use sluice_testkit::ship::Machine;
use sluice_testkit::workspace::scratch;

use super::archive::Archive;
use super::image::Image;

/// What differs between emulated machines.
struct Emulation {
    /// The program with the first of its arguments.
    program: &'static [&'static str],
    /// The kernel's console.
    console: &'static str,
    /// A second serial line, for what the tests print; without, they share the console.
    output: Option<&'static str>,
}

/// A guest takes a third of this on an idle core; one that reaches it hangs.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// All files of a guest are in its memory, twice while it boots.
const MEMORY_MB: &str = "1024";
/// Powers off the guest when its kernel panics, and skips what emulation does not need.
const KERNEL_OPTIONS: &str = "quiet panic=-1 mitigations=off";
/// The guest's clock counts its own instructions, one per nanosecond, and jumps when it only waits: its time is
/// independent of this host's, and no test runs out of time because the host is slow.
const CLOCK: [&str; 4] = ["-icount", "shift=0,sleep=off", "-rtc", "clock=vm"];

const X86_64: Emulation = Emulation {
    // Copying single bytes is expensive if each is an instruction.
    program: &["qemu-system-x86_64", "-cpu", "max,erms=off,fsrm=off"],
    console: "ttyS0",
    output: Some("ttyS1"),
};
const ARM64: Emulation = Emulation {
    // Signing pointers is expensive, too.
    program: &["qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth=off"],
    console: "ttyAMA0",
    output: None,
};

fn emulation(machine: Machine) -> &'static Emulation {
    match machine {
        Machine::Native => &X86_64,
        Machine::Arm64 => &ARM64,
    }
}

/// Its emulator.
pub(super) fn program(machine: Machine) -> &'static str {
    emulation(machine).program[0]
}

/// The serial line for what the tests print.
pub(super) fn output(machine: Machine) -> &'static str {
    let emulation = emulation(machine);
    emulation.output.unwrap_or(emulation.console)
}

/// Boots it; returns its lines. They are also shown, each prefixed with `name`.
///
/// # Errors
/// When qemu cannot be run, or does not end in time.
pub(super) fn boot(name: &str, image: &Image, archive: &Archive) -> Result<Vec<String>> {
    let initial = scratch("kernels/guests")?.join(format!("{name}.cpio"));
    let mut file = BufWriter::new(File::create(&initial).with_context(|| initial.display().to_string())?);
    archive.write(&mut file)?;
    file.flush()?;
    let mut command = emulator(name, image, &initial)?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("qemu")?;
    let output = child.stdout.take().context("stdout is piped above")?;
    let said = listen(name, output);
    // It has exited by itself, or must be killed.
    if said.is_err() {
        child.kill()?;
    }
    child.wait()?;
    said
}

fn emulator(name: &str, image: &Image, initial: &Path) -> Result<Command> {
    let Emulation { program, console, output } = emulation(image.machine);
    let mut command = bound(program[0]);
    command.args(&program[1..]).args(["-accel", "tcg,thread=single", "-smp", "1", "-m", MEMORY_MB]);
    command.args(CLOCK).args(["-nodefaults", "-no-reboot", "-display", "none"]);
    if output.is_some() {
        command.arg("-serial").arg(format!("file:{}", console_log(name)?.display()));
    }
    command.args(["-serial", "stdio", "-kernel"]).arg(&image.kernel).arg("-initrd").arg(initial);
    command.arg("-append").arg(format!("console={console} {KERNEL_OPTIONS}"));
    Ok(command)
}

/// Shows and keeps every line until there are no more.
fn listen(name: &str, output: impl Read + Send + 'static) -> Result<Vec<String>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(io::Result::ok) {
            // There is no receiver after the time limit.
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let (begun, mut lines) = (Instant::now(), Vec::new());
    let mut log = File::create(scratch("logs")?.join(format!("test-{name}.log")))?;
    loop {
        match receiver.recv_timeout(LIMIT.saturating_sub(begun.elapsed())) {
            Ok(line) => {
                // The report of sluice doctor is only for the check.
                if !line.starts_with([' ', '{', '}']) {
                    println!("{name}: {line}");
                }
                writeln!(log, "{line}")?;
                lines.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(lines),
            Err(RecvTimeoutError::Timeout) => bail!("the guest has not finished after {} s", LIMIT.as_secs()),
        }
    }
}

/// The path of the kernel's own log.
fn console_log(name: &str) -> Result<PathBuf> {
    Ok(scratch("logs")?.join(format!("console-{name}.log")))
}
