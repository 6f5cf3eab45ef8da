//! bpf(2) with commands that change nothing: a map, a type description or a program is created and closed again.
//!
//! Nothing is attached or pinned, and only programs without side effects are run. Attributes are laid out as in
//! linux/bpf.h. Fields that are left out are zero, which every kernel treats as absent.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::KernelError;

const MAP_CREATE: (libc::c_long, &str) = (0, "bpf(BPF_MAP_CREATE)");
const PROG_LOAD: (libc::c_long, &str) = (5, "bpf(BPF_PROG_LOAD)");
const PROG_TEST_RUN: (libc::c_long, &str) = (10, "bpf(BPF_PROG_TEST_RUN)");
const BTF_LOAD: (libc::c_long, &str) = (18, "bpf(BPF_BTF_LOAD)");

/// The part of `union bpf_attr` that BPF_MAP_CREATE reads.
#[repr(C)]
#[derive(Default)]
pub(super) struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

impl MapAttr {
    /// A map with keys and values of 4 bytes.
    pub(super) fn new(map_type: u32, map_flags: u32, max_entries: u32) -> Self {
        Self { map_type, key_size: 4, value_size: 4, max_entries, map_flags, ..Self::default() }
    }
}

/// The part that BPF_PROG_LOAD reads.
#[repr(C)]
#[derive(Default)]
struct ProgAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The part that BPF_BTF_LOAD reads.
#[repr(C)]
#[derive(Default)]
struct BtfAttr {
    btf: u64,
    log_buf: u64,
    btf_size: u32,
    log_size: u32,
}

/// The part that BPF_PROG_TEST_RUN reads, and where it returns its results.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// The kernel refuses an attribute that is longer than its own and has bytes set beyond it, so the sizes must match.
const _: () =
    assert!(size_of::<MapAttr>() == 60 && size_of::<ProgAttr>() == 72 && size_of::<BtfAttr>() == 24);
const _: () = assert!(size_of::<TestRunAttr>() == 40);

/// One instruction: opcode, registers (source in the upper half), offset, immediate value.
pub(super) type Insn = (u8, u8, i16, i32);

/// Creates a map. It is destroyed when the descriptor is dropped.
pub(super) fn create_map(attr: &MapAttr) -> Result<OwnedFd, KernelError> {
    call(MAP_CREATE, attr)
}

/// Creates a map whose key and value are described as the `int` of 4 bytes that socket storage requires.
pub(super) fn create_described_map(mut attr: MapAttr) -> Result<OwnedFd, KernelError> {
    let int = load_btf_of_int()?;
    attr.btf_fd = int.as_raw_fd().cast_unsigned();
    (attr.btf_key_type_id, attr.btf_value_type_id) = (1, 1);
    create_map(&attr)
}

/// How often to retry loading a program that could not be loaded at that moment; libbpf retries as often.
const AGAIN_MAX: u32 = 5;

/// Verifies and loads a program. It is destroyed when the descriptor is dropped.
pub(super) fn load_program(
    prog_type: u32,
    expected_attach_type: u32,
    program: &[Insn],
) -> Result<OwnedFd, KernelError> {
    let mut insns = Vec::with_capacity(program.len() * 8);
    for (opcode, registers, offset, immediate) in program {
        insns.extend([*opcode, *registers]);
        insns.extend(offset.to_ne_bytes());
        insns.extend(immediate.to_ne_bytes());
    }
    // Some helpers are only for programs under the GPL. A program loaded here is never run.
    let license = c"GPL";
    let attr = ProgAttr {
        prog_type,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: insns.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        expected_attach_type,
        ..ProgAttr::default()
    };
    let mut loaded = call(PROG_LOAD, &attr);
    for _ in 0..AGAIN_MAX {
        match &loaded {
            // A signal arrived during the verification.
            Err(error) if error.error.kind() == ErrorKind::WouldBlock => loaded = call(PROG_LOAD, &attr),
            _ => break,
        }
    }
    loaded
}

/// BTF of one type, `int`, signed, of 32 bits; its id is 1.
fn load_btf_of_int() -> Result<OwnedFd, KernelError> {
    const HEADER_BYTES: u32 = 24;
    const TYPE_BYTES: u32 = 16;
    const NAMES: &[u8; 5] = b"\0int\0";
    // Magic, version, flags.
    let [low, high] = 0xeb9f_u16.to_ne_bytes();
    let mut bytes = vec![low, high, 1, 0];
    // Length of this header; types (from, bytes), names (from, bytes).
    let header = [HEADER_BYTES, 0, TYPE_BYTES, TYPE_BYTES, NAMES.len() as u32];
    // Name at 1, kind BTF_KIND_INT, bytes, BTF_INT_SIGNED and bits.
    let int = [1, 1 << 24, 4, 1 << 24 | 32];
    bytes.extend(header.into_iter().chain(int).flat_map(u32::to_ne_bytes));
    bytes.extend(NAMES);
    let attr = BtfAttr {
        btf: bytes.as_ptr().expose_provenance() as u64,
        btf_size: bytes.len() as u32,
        ..BtfAttr::default()
    };
    call(BTF_LOAD, &attr)
}

/// Runs a program once on `data`, a frame that is not sent anywhere, and returns its return value.
pub(super) fn run_program(program: BorrowedFd<'_>, data: &[u8]) -> Result<u32, KernelError> {
    let (command, name) = PROG_TEST_RUN;
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        data_size_in: u32::try_from(data.len()).unwrap_or(u32::MAX),
        data_in: data.as_ptr().expose_provenance() as u64,
        ..TestRunAttr::default()
    };
    // SAFETY: `attr` is a plain structure without padding on this stack and lives until the call returns; the length is
    // its size. The kernel reads `data`, which the caller lends until then, and writes only to `attr`.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<TestRunAttr>()) };
    if done < 0 { Err(KernelError::last(name)) } else { Ok(attr.retval) }
}

fn call<A>((command, name): (libc::c_long, &'static str), attr: &A) -> Result<OwnedFd, KernelError> {
    // SAFETY: `attr` is a plain structure without padding that the caller lends until the call returns; the length is
    // its size. The addresses in it point to buffers that the callers above own until then, with their true lengths.
    // The kernel reads them during the call and keeps none of the pointers.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<A>()) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(|| KernelError::last(name))?;
    // SAFETY: these three commands return a new descriptor (close-on-exec), which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
