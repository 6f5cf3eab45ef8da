//! Names for the numbers that are keys of the scripts' maps.

/// System calls of x86-64 that servers use.
#[cfg(target_arch = "x86_64")]
const SYSTEM_CALLS: &[(u32, &str)] = &[
    (0, "read"),
    (1, "write"),
    (3, "close"),
    (7, "poll"),
    (9, "mmap"),
    (10, "mprotect"),
    (11, "munmap"),
    (13, "rt_sigaction"),
    (14, "rt_sigprocmask"),
    (16, "ioctl"),
    (19, "readv"),
    (20, "writev"),
    (23, "select"),
    (24, "sched_yield"),
    (28, "madvise"),
    (35, "nanosleep"),
    (39, "getpid"),
    (40, "sendfile"),
    (41, "socket"),
    (42, "connect"),
    (43, "accept"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (48, "shutdown"),
    (51, "getsockname"),
    (52, "getpeername"),
    (54, "setsockopt"),
    (55, "getsockopt"),
    (72, "fcntl"),
    (202, "futex"),
    (219, "restart_syscall"),
    (228, "clock_gettime"),
    (230, "clock_nanosleep"),
    (232, "epoll_wait"),
    (233, "epoll_ctl"),
    (270, "pselect6"),
    (271, "ppoll"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
];
#[cfg(not(target_arch = "x86_64"))]
const SYSTEM_CALLS: &[(u32, &str)] = &[];

/// Operations of io_uring.
const OPCODES: &[(u32, &str)] = &[
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
    let table = match map {
        "calls" | "call_total_us" => SYSTEM_CALLS,
        "complete_us" | "async_work" => OPCODES,
        _ => return key.replace(',', " to "),
    };
    let name = key.parse().ok().and_then(|number: u32| table.iter().find(|(known, _)| *known == number));
    name.map_or_else(|| key.to_owned(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_have_names() {
        assert_eq!(key("complete_us", "27"), "recv");
        assert_eq!(key("complete_us", "250"), "250");
        assert_eq!(key("accept_wait_us", "27"), "27");
        assert_eq!(key("resets_sent", "5000,80"), "5000 to 80");
    }
}
