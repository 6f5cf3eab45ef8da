//! Names for the numbers that are keys of the scripts' maps, and the numbers of system calls in their conditions.

use std::borrow::Cow;
use std::str::FromStr;

use syscalls::{Sysno, x86_64};

/// Operations of io_uring.
const OPCODES: &[(usize, &str)] = &[
    (0, "nop"),
    (1, "readv"),
    (2, "writev"),
    (6, "poll_add"),
    (7, "poll_remove"),
    (9, "sendmsg"),
    (10, "recvmsg"),
    (11, "timeout"),
    (12, "timeout_remove"),
    (13, "accept"),
    (14, "async_cancel"),
    (15, "link_timeout"),
    (16, "connect"),
    (18, "openat"),
    (19, "close"),
    (22, "read"),
    (23, "write"),
    (26, "send"),
    (27, "recv"),
    (30, "splice"),
    (34, "shutdown"),
    (45, "socket"),
    (47, "send_zc"),
    (48, "sendmsg_zc"),
];

/// A key of the map `map` by name, or as it is.
pub(super) fn key(map: &str, key: &str) -> String {
    let name = match (map, key.parse()) {
        ("calls" | "call_total_us", Ok(number)) => Sysno::new(number).map(|call| call.name()),
        ("complete_us" | "async_work", Ok(number)) => opcode(number),
        ("calls" | "call_total_us" | "complete_us" | "async_work", Err(_)) => None,
        _ => return key.replace(',', " to "),
    };
    name.unwrap_or(key).to_owned()
}

fn opcode(number: usize) -> Option<&'static str> {
    OPCODES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Precedes the number of a system call in a script.
const COMPARISON: &str = "id == ";
/// A number that no system call has.
const NO_CALL: usize = 0xffff_ffff;

/// A script with the numbers of this machine's system calls. The scripts are written with those of x86-64.
pub(super) fn native(script: &'static str) -> Cow<'static, str> {
    if cfg!(target_arch = "x86_64") {
        return Cow::Borrowed(script);
    }
    Cow::Owned(renumbered(script, |name| Sysno::from_str(name).ok().map(|call| call.id() as usize)))
}

/// `script`, with each number of a system call of x86-64 replaced by what `number` returns for its name. A call that
/// only x86-64 has gets a number that never occurs.
fn renumbered(script: &str, number: impl Fn(&str) -> Option<usize>) -> String {
    let mut parts = script.split(COMPARISON);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (digits, rest) = part.split_at(end);
        text.push_str(COMPARISON);
        // Others compare with a parameter, as in `pid == $1`.
        if !digits.is_empty() {
            let call = digits.parse().ok().and_then(x86_64::Sysno::new);
            text.push_str(&call.and_then(|call| number(call.name())).unwrap_or(NO_CALL).to_string());
        }
        text.push_str(rest);
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syscalls::aarch64;

    use super::*;

    #[test]
    fn known_numbers_have_names() {
        assert_eq!(key("complete_us", "27"), "recv");
        assert_eq!(key("complete_us", "250"), "250");
        assert_eq!(key("accept_wait_us", "27"), "27");
        assert_eq!(key("resets_sent", "5000,80"), "5000 to 80");
    }

    #[test]
    fn system_calls_are_named_by_the_numbers_of_this_machine() {
        assert_eq!(key("calls", &Sysno::futex.id().to_string()), "futex");
        assert_eq!(key("call_total_us", "4000000000"), "4000000000");
        assert_eq!(key("calls", "none"), "none");
    }

    #[test]
    fn a_script_gets_the_numbers_of_another_architecture() {
        let script =
            "/pid == $1 && args->id == 60/ { if ($id == 202 || $id == 232) { @a = 1; } } // futex 202";
        let number =
            |name: &str| aarch64::Sysno::from_str(name).ok().map(|call| usize::try_from(call.id()).unwrap());
        assert_eq!(
            renumbered(script, number),
            "/pid == $1 && args->id == 93/ { if ($id == 98 || $id == 4294967295) { @a = 1; } } // futex 202"
        );
        let same =
            |name: &str| x86_64::Sysno::from_str(name).ok().map(|call| usize::try_from(call.id()).unwrap());
        let script = crate::script("syscall_latency").unwrap();
        assert_eq!(renumbered(script, same), script);
    }
}
