//! The members of a fleet as a table, for `list --fleet` and `top --fleet`.

use std::collections::BTreeMap;
use std::fmt::Write;

use sluice_control::fleet::{FleetView, MemberView};

/// A fleet as a table, with a line about its store above.
pub(crate) fn table(view: &FleetView) -> String {
    let mut text = match &view.trouble {
        Some(trouble) => {
            format!("{} cannot reach {}: {trouble}\nThe last known members:\n", view.member, view.engine)
        }
        None => String::new(),
    };
    let change = match view.version {
        0 => "nothing is deployed".to_owned(),
        version => format!("version {version}: {} by {}", view.change, view.changed_by),
    };
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{} members by {}, {change}", view.members.len(), view.engine);
    let mut processes: BTreeMap<&str, usize> = BTreeMap::new();
    view.members.iter().for_each(|member| *processes.entry(&member.name).or_default() += 1);
    let head = ["Member", "Release", "Requests/s", "Failures/s", "In flight", "p99", "State"];
    let mut rows = vec![head.map(str::to_owned)];
    for member in &view.members {
        let count = processes.get(member.name.as_str()).copied().unwrap_or(1);
        rows.push(row(view, member, count));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(view: &FleetView, member: &MemberView, processes: usize) -> [String; 7] {
    let MemberView { traffic, .. } = member;
    let p99 = traffic.p99_ms.map_or("-".to_owned(), |p99_ms| format!("{p99_ms:.1} ms"));
    [
        member.name.clone(),
        member.release.clone(),
        format!("{:.0}", traffic.requests),
        format!("{:.0}", traffic.failures),
        traffic.in_flight.to_string(),
        p99,
        state(view, member, processes),
    ]
}

/// What a member has still to do.
fn state(view: &FleetView, member: &MemberView, processes: usize) -> String {
    let failed = member.failed.iter().map(|(service, error)| format!("cannot serve {service}: {error}"));
    let mut said: Vec<String> = failed.collect();
    if member.applied < view.version {
        said.push(format!("serves version {}", member.applied));
    } else if member.settled < view.version {
        said.push("drains replaced targets".to_owned());
    }
    if processes > 1 {
        said.push(format!("one of {processes} processes of this name"));
    }
    if said.is_empty() { "up to date".to_owned() } else { said.join("; ") }
}

#[cfg(test)]
mod tests {
    use sluice_control::fleet::Traffic;

    use super::*;

    #[test]
    fn the_table_says_what_each_member_has_still_to_do() {
        let member = |name: &str, applied, settled| MemberView {
            name: name.to_owned(),
            release: "0.1.0".to_owned(),
            applied,
            settled,
            traffic: Traffic { requests: 12.4, p99_ms: Some(3.25), ..Traffic::default() },
            ..MemberView::default()
        };
        let mut failed = member("web4", 7, 7);
        failed.failed.insert("app".to_owned(), "no".to_owned());
        let view = FleetView {
            member: "web1".to_owned(),
            engine: "etcd".to_owned(),
            version: 7,
            change: "deploy of app".to_owned(),
            changed_by: "web2".to_owned(),
            members: vec![member("web1", 7, 7), member("web2", 7, 6), member("web3", 5, 5), failed],
            ..FleetView::default()
        };
        let wanted = "4 members by etcd, version 7: deploy of app by web2\n\
            Member  Release  Requests/s  Failures/s  In flight  p99     State\n\
            web1    0.1.0    12          0           0          3.2 ms  up to date\n\
            web2    0.1.0    12          0           0          3.2 ms  drains replaced targets\n\
            web3    0.1.0    12          0           0          3.2 ms  serves version 5\n\
            web4    0.1.0    12          0           0          3.2 ms  cannot serve app: no\n";
        assert_eq!(table(&view), wanted);
    }
}
