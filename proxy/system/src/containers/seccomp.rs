//! Converts a seccomp profile in the format of Docker and containerd to that of a runtime: rules that depend on
//! capabilities or on an architecture are selected here, as those engines do.

use serde_json::{Value, json};

/// Prefix of comments on our own rules.
const OWN: &str = "sluice:";

/// The profile without sluice's rules: the default one of those engines.
pub(super) fn without_ours(mut profile: Value) -> Value {
    if let Some(rules) = profile["syscalls"].as_array_mut() {
        rules.retain(|rule| !rule["comment"].as_str().unwrap_or_default().starts_with(OWN));
    }
    profile
}

/// `linux.seccomp` of an OCI runtime's configuration, for a container that may have `capabilities`.
pub(super) fn for_runtime(profile: &Value, capabilities: &[&str]) -> Value {
    let (architecture, short) = match std::env::consts::ARCH {
        "aarch64" => ("SCMP_ARCH_AARCH64", "arm64"),
        _ => ("SCMP_ARCH_X86_64", "amd64"),
    };
    let of = |rule: &Value, list: &str, key: &str| -> Vec<String> {
        let items = rule[list][key].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let has = |name: &String| capabilities.contains(&name.as_str());
    let applies = |rule: &&Value| {
        let arches = of(rule, "includes", "arches");
        of(rule, "includes", "caps").iter().all(has)
            && (arches.is_empty() || arches.iter().any(|arch| arch == short))
            && !of(rule, "excludes", "caps").iter().any(has)
            && !of(rule, "excludes", "arches").iter().any(|arch| arch == short)
    };
    let rules = profile["syscalls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules: Vec<Value> = rules.iter().filter(applies).map(rule).collect();
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [architecture],
        "syscalls": rules,
    })
}

fn rule(of_engine: &Value) -> Value {
    let mut rule = json!({"names": of_engine["names"], "action": of_engine["action"]});
    for key in ["args", "errnoRet"] {
        if !of_engine[key].is_null() {
            rule[key] = of_engine[key].clone();
        }
    }
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_chosen_by_capabilities() {
        let profile = json!({"defaultAction": "E", "defaultErrnoRet": 1, "syscalls": [
            {"names": ["read"], "action": "A"},
            {"names": ["bpf"], "action": "A", "includes": {"caps": ["CAP_BPF"]}},
            {"names": ["clone3"], "action": "E", "errnoRet": 38, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["io_uring_setup"], "action": "A", "comment": "sluice: rings"},
        ]});
        let names = |profile: &Value, capabilities: &[&str]| {
            let rules = for_runtime(profile, capabilities)["syscalls"].clone();
            let rules = rules.as_array().cloned().unwrap_or_default();
            rules
                .iter()
                .map(|rule| rule["names"][0].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&profile, &["CAP_BPF", "CAP_SYS_ADMIN"]), ["read", "bpf", "io_uring_setup"]);
        assert_eq!(names(&without_ours(profile), &[]), ["read", "clone3"]);
    }
}
