//! Whether each kernel assist will be used, and if not, why.

use sluice_engine::AssistError;
use std::fmt::Write;

use serde_json::{Value, json};
use sluice_config::{AssistMode, Config, Switch, Word};
use sluice_kernel::probe::{Host, Sources};

use super::{Area, Status, areas, find};

/// An assist and its requirements.
struct Assist {
    name: &'static str,
    /// Required findings: area and name.
    needs: &'static [(&'static str, &'static str)],
}

const BYPASS: Assist = Assist {
    name: "bypass",
    needs: &[
        ("capabilities", "CAP_BPF"),
        ("capabilities", "CAP_NET_ADMIN"),
        ("capabilities", "CAP_PERFMON"),
        ("cgroups", "cgroup2"),
        ("bpf", "btf"),
        ("bpf", "sockhash"),
        ("bpf", "sk_storage"),
        ("bpf", "array_mmapable"),
        ("bpf", "sock_ops"),
        ("bpf", "sk_msg"),
        ("bpf", "probe_read_kernel"),
    ],
};

/// Uses the connections that bypass has joined.
const DIRECT_RETURN: Assist = Assist { name: "direct_return", needs: BYPASS.needs };

const SPLICE: Assist = Assist {
    name: "splice",
    needs: &[
        ("capabilities", "CAP_BPF"),
        ("capabilities", "CAP_NET_ADMIN"),
        ("bpf", "sockhash"),
        ("capabilities", "CAP_PERFMON"),
        ("bpf", "btf"),
        ("bpf", "sk_skb"),
        ("bpf", "probe_read_kernel"),
    ],
};

/// Attached to sluice's own sockets, which requires no other capability.
const BANS: Assist = Assist {
    name: "bans",
    needs: &[("capabilities", "CAP_BPF"), ("bpf", "lru_hash"), ("bpf", "socket_filter")],
};

/// The same for the program that chooses workers.
const ACCEPT_STEERING: Assist = Assist {
    name: "accept_steering",
    needs: &[("capabilities", "CAP_BPF"), ("bpf", "array_mmapable"), ("bpf", "socket_filter")],
};

/// The verdicts on the assists.
#[derive(Debug)]
pub(crate) struct Assists {
    bypass: Verdict,
    direct_return: Verdict,
    splice: Verdict,
    bans: Verdict,
    accept_steering: Verdict,
}

/// The verdict on one assist.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) name: &'static str,
    pub(super) mode: AssistMode,
    /// Whether the host supports it, whatever the configuration says: every requirement is met, and it did not fail
    /// when it was tested. `None` if the host was not probed.
    pub(super) host_can: Option<bool>,
    /// Why it is not used; empty if it is.
    pub(super) reasons: Vec<Reason>,
}

/// Why an assist is not used.
#[derive(Debug)]
pub(super) struct Reason {
    /// For programs: `off`, the `area.name` of a finding, or, if it was tested, `load` or `self_test.` and the failed
    /// check.
    pub(super) code: String,
    /// For people.
    pub(super) means: String,
    /// What to do about it.
    pub(super) remedy: Option<String>,
}

impl Assists {
    /// The verdicts for a host with these findings.
    pub(super) fn judge(config: &Config, areas: &[Area]) -> Self {
        let modes = config.kernel;
        Self {
            bypass: verdict(&BYPASS, modes.bypass, Some(areas)),
            direct_return: verdict(&DIRECT_RETURN, modes.direct_return, Some(areas)),
            splice: verdict(&SPLICE, modes.splice, Some(areas)),
            bans: verdict(&BANS, modes.bans, Some(areas)),
            accept_steering: verdict(&ACCEPT_STEERING, modes.accept_steering, Some(areas)),
        }
        .with_dependence(config)
    }

    /// The verdicts at startup, from findings only: nothing is tested. The host is probed only if the result can
    /// matter, because a seccomp filter may kill processes that call bpf(2).
    pub(crate) fn for_start(config: &Config) -> Self {
        let modes = config.kernel;
        if modes.bypass != AssistMode::Off
            || modes.direct_return == AssistMode::Required
            || modes.splice != AssistMode::Off
            || modes.bans == AssistMode::Required
            || (modes.bans == AssistMode::Auto && config.bans_clients())
            || modes.accept_steering == AssistMode::Required
            || (modes.accept_steering == AssistMode::Auto && config.worker_count() > 1)
        {
            return Self::judge(config, &areas(config, &Host::probe(&Sources::host()), &Ok(())));
        }
        Self {
            bypass: verdict(&BYPASS, modes.bypass, None),
            direct_return: verdict(&DIRECT_RETURN, modes.direct_return, None),
            splice: verdict(&SPLICE, modes.splice, None),
            bans: verdict(&BANS, modes.bans, None),
            accept_steering: verdict(&ACCEPT_STEERING, modes.accept_steering, None),
        }
        .with_dependence(config)
    }

    /// Direct return needs connections joined by bypass, and clients that are not joined; bans need somebody to ban, and
    /// a choice needs several workers.
    fn with_dependence(mut self, config: &Config) -> Self {
        let modes = config.kernel;
        if modes.bans == AssistMode::Auto && !config.bans_clients() {
            self.bans.reasons = vec![Reason {
                code: "no_limit".to_owned(),
                means: "no rate limit bans".to_owned(),
                remedy: Some("write kernel.bans: required for bans by `sluice bans add` alone".to_owned()),
            }];
        }
        if modes.accept_steering == AssistMode::Auto && config.worker_count() == 1 {
            let means = "there is one worker".to_owned();
            self.accept_steering.reasons =
                vec![Reason { code: "one_worker".to_owned(), means, remedy: None }];
        }
        if !self.bypass.is_used() && self.direct_return.is_used() {
            self.direct_return.reasons.push(no_bypass());
        } else if modes.bypass_downstream == Switch::On && self.direct_return.is_used() {
            self.direct_return.reasons.push(Reason {
                code: "bypass_downstream".to_owned(),
                means: "kernel.bypass_downstream is on".to_owned(),
                remedy: Some("write kernel.bypass_downstream: off".to_owned()),
            });
        }
        self
    }

    /// Whether no finding rules out bypass, so that it should be tested.
    pub(crate) fn may_bypass(&self) -> bool {
        self.bypass.is_used()
    }

    /// Records that an assist failed its test and is not used: a code for programs, and a text.
    pub(crate) fn note_failure(&mut self, name: &str, code: impl Into<String>, means: &str) {
        let all = [
            &mut self.bypass,
            &mut self.direct_return,
            &mut self.splice,
            &mut self.bans,
            &mut self.accept_steering,
        ];
        for verdict in all {
            if verdict.name == name {
                // The verifier's log has many lines; only the first is shown.
                let means = means.lines().next().unwrap_or_default().to_owned();
                verdict.reasons.push(Reason { code: code.into(), means, remedy: None });
                verdict.host_can = Some(false);
                break;
            }
        }
        if name == "bypass" && self.direct_return.is_used() {
            self.direct_return.reasons.push(no_bypass());
            self.direct_return.host_can = Some(false);
        }
    }

    /// Whether the host was probed.
    pub(super) fn asked_host(&self) -> bool {
        self.all().iter().any(|one| one.host_can.is_some())
    }

    /// Whether responses may use direct return.
    pub(crate) fn returns_directly(&self) -> bool {
        self.direct_return.is_used()
    }

    /// Whether tunnels are to be spliced.
    pub(crate) fn splices(&self) -> bool {
        self.splice.is_used()
    }

    /// Whether the kernel is to turn banned clients away.
    pub(crate) fn bars(&self) -> bool {
        self.bans.is_used()
    }

    /// Whether the kernel is to give each connection to the worker with the fewest.
    pub(crate) fn chooses_workers(&self) -> bool {
        self.accept_steering.is_used()
    }

    pub(super) fn all(&self) -> [&Verdict; 5] {
        [&self.bypass, &self.direct_return, &self.splice, &self.bans, &self.accept_steering]
    }

    /// Names of the required assists that cannot be used.
    pub(super) fn lacking(&self) -> impl Iterator<Item = &'static str> {
        let lacks = |one: &&Verdict| one.mode == AssistMode::Required && !one.is_used();
        self.all().into_iter().filter(lacks).map(|one| one.name)
    }

    /// Checks that all required assists can be used.
    ///
    /// # Errors
    /// A sentence for each that cannot, with what is missing.
    pub(crate) fn require(&self) -> Result<(), AssistError> {
        let lacking: Vec<&str> = self.lacking().collect();
        let told = self.all().into_iter().filter(|one| lacking.contains(&one.name)).map(|one| {
            format!(
                "kernel.{0}: required, but {0} cannot be used: {1}; auto runs without it",
                one.name,
                one.why()
            )
        });
        let told: Vec<String> = told.collect();
        if told.is_empty() { Ok(()) } else { Err(told.join("\n").into()) }
    }

    /// For bypass, direct return, splice, bans and accept steering: `used`, or why not, in a few words.
    pub(crate) fn words(&self) -> [String; 5] {
        self.all()
            .map(|one| if one.is_used() { "used".to_owned() } else { format!("not used: {}", one.why()) })
    }

    pub(super) fn to_json(&self) -> Value {
        self.all().into_iter().map(|one| (one.name.to_owned(), one.to_json())).collect()
    }
}

impl Verdict {
    pub(super) fn is_used(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The reasons in one line.
    pub(super) fn why(&self) -> String {
        let mut line = String::new();
        for (index, reason) in self.reasons.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            // Writing to text does not fail.
            let _ = write!(line, "{comma}{}", reason.means);
        }
        line
    }

    fn to_json(&self) -> Value {
        let reasons = self
            .reasons
            .iter()
            .map(|reason| json!({"code": reason.code, "means": reason.means, "remedy": reason.remedy}));
        json!({
            "mode": self.mode.word(),
            "used": self.is_used(),
            "host_can": self.host_can,
            "reasons": reasons.collect::<Vec<_>>(),
        })
    }
}

fn no_bypass() -> Reason {
    let means = "bypass is not used".to_owned();
    Reason { code: "bypass".to_owned(), means, remedy: Some("see bypass".to_owned()) }
}

fn verdict(assist: &Assist, mode: AssistMode, areas: Option<&[Area]>) -> Verdict {
    let name = assist.name;
    let lacks = areas.map(|areas| lacks(assist, areas));
    let host_can = lacks.as_ref().map(Vec::is_empty);
    if mode == AssistMode::Off {
        let means = format!("kernel.{name} is off");
        let remedy = Some(format!("write kernel.{name}: auto"));
        return Verdict {
            name,
            mode,
            host_can,
            reasons: vec![Reason { code: "off".to_owned(), means, remedy }],
        };
    }
    let reasons = lacks.unwrap_or_default();
    Verdict { name, mode, host_can, reasons }
}

/// What the host lacks, without consequences of other missing items.
fn lacks(assist: &Assist, areas: &[Area]) -> Vec<Reason> {
    let missing = assist.needs.iter().filter_map(|place| {
        let finding = find(areas, *place)?;
        (finding.status == Status::Missing).then_some((place, finding))
    });
    let missing: Vec<_> = missing.collect();
    let causes = missing.iter().any(|(_, finding)| !finding.follows);
    let named = missing.iter().filter(|(_, finding)| !causes || !finding.follows);
    named
        .map(|((area, name), finding)| Reason {
            code: format!("{area}.{}", finding.key()),
            means: format!("{name} is missing"),
            remedy: finding.remedy.clone(),
        })
        .collect()
}
