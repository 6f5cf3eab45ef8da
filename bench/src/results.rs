//! The folder of results: raw figures with properties of the machine, tables, plots.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sluice_testkit::pinned::first_line;
use sluice_testkit::workspace::root;

use super::machine::Machine;
use super::measure::OTHERS_MAX;
use super::record::CaseRecord;
use super::rig::Equipment;
use super::{Options, plot, report, summary};

/// All results, as written to `raw.json`.
#[derive(Serialize)]
pub(super) struct Results {
    #[serde(skip)]
    folder: PathBuf,
    command: String,
    unix_seconds: u64,
    commit: String,
    machine: Machine,
    versions: BTreeMap<String, String>,
    /// Unavailable tools and scenarios, and why.
    skipped: BTreeMap<String, String>,
    cases: Vec<CaseRecord>,
}

impl Results {
    /// Creates the folder and records what is known before the first measurement.
    ///
    /// # Errors
    /// The folder cannot be created, or its name is a path.
    pub(super) fn new(options: &Options, machine: Machine, equipment: &Equipment) -> Result<Self> {
        let name = &options.out;
        ensure!(!name.is_empty() && !name.contains(['/', '.']), "--out takes a name, not a path: {name}");
        let folder = root().join("bench/results").join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut versions = equipment.tools.versions();
        let sluice = first_line(Command::new(&equipment.sluice).arg("version"));
        versions.insert("sluice".to_owned(), sluice?);
        let skipped = equipment.tools.missing().clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let git = || {
            let mut git = Command::new("git");
            git.args(["describe", "--always", "--dirty"]).current_dir(root());
            git
        };
        Ok(Self {
            folder,
            command: command(options),
            unix_seconds: now.as_secs(),
            commit: first_line(&mut git()).unwrap_or_default(),
            machine,
            versions,
            skipped,
            cases: Vec::new(),
        })
    }

    /// Adds a case and writes everything, so that an interrupted run keeps its results.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn add(&mut self, case: CaseRecord) -> Result<()> {
        plot::draw(&case, &self.folder)?;
        self.cases.push(case);
        self.write()
    }

    /// Records a case that cannot be measured.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn skip(&mut self, case: &str, why: &str) -> Result<()> {
        println!("skipped: {case}: {why}");
        self.skipped.insert(case.to_owned(), why.to_owned());
        self.write()
    }

    /// Prints the tables.
    ///
    /// # Errors
    /// Nothing was measured.
    pub(super) fn end(&self) -> Result<()> {
        for case in &self.cases {
            println!("\n{}", report::section(case));
        }
        println!("{}", summary::summary(&self.cases));
        ensure!(!self.cases.is_empty(), "nothing was measured");
        println!("raw.json, table.md and plots are in bench/results/{}", self.name());
        Ok(())
    }

    fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn write(&self) -> Result<()> {
        let raw = serde_json::to_string_pretty(self)?;
        fs::write(self.folder.join("raw.json"), raw + "\n").context("raw.json")?;
        fs::write(self.folder.join("table.md"), self.table()).context("table.md")
    }

    fn table(&self) -> String {
        let machine = &self.machine;
        let mut text = format!("# {}\n\n`{}`\n\n", self.name(), self.command);
        text += &format!("Commit {}. {machine}\n", self.commit);
        if machine.busy_before > OTHERS_MAX {
            text += "\n**The machine was busy before the run: the figures are unreliable.**\n";
        }
        for (name, why) in &self.skipped {
            text += &format!("\nSkipped: {name}: {}\n", why.lines().next().unwrap_or_default());
        }
        text += &summary::summary(&self.cases);
        for case in &self.cases {
            text += &format!("\n{}", report::section(case));
        }
        text += "\n## Versions\n\n";
        for (name, version) in &self.versions {
            text += &format!("- {name}: {version}\n");
        }
        text
    }
}

/// The command that repeats the run.
fn command(options: &Options) -> String {
    let mut words = vec!["cargo xtask bench".to_owned()];
    words.extend(options.scenarios.iter().cloned());
    if let Some(peers) = &options.peers {
        words.push(format!("--peers {}", peers.join(",")));
    }
    words.push(format!("--rounds {} --seconds {} --out {}", options.rounds, options.seconds, options.out));
    if options.soak_minutes > 0 {
        words.push(format!("--soak-minutes {}", options.soak_minutes));
    }
    if options.although_busy {
        words.push("--although-busy".to_owned());
    }
    words.join(" ")
}
