//! Offsets of fields in kernel structures, from the kernel's own type information (BTF, Linux 5.2).
//!
//! The programs read a few fields for which there is no helper, and aya relocates no fields in Rust. So this module
//! finds their offsets, which are passed to the programs before they are loaded. Pure: bytes in, offsets out.

use sluice_ebpf::splice::SendBuffer;
use sluice_ebpf::{Memory, Offsets};

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// Sizes of `struct btf_type` and `struct btf_member`.
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// Maximum nesting of anonymous structures: deeper than any kernel nests them, and a bound for broken data.
const DEPTH_MAX: u32 = 8;

/// Why the offsets are unavailable.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    /// It ends too early, or refers to something that does not exist.
    #[error("malformed type information: {0}")]
    Malformed(&'static str),
    /// This kernel does not have the structure or field.
    #[error("this kernel has no {0}")]
    Missing(&'static str),
}

type Result<T> = std::result::Result<T, BtfError>;

/// Finds the fields that the bypass programs read, and where the kernel accounts for the memory of sockets, for the
/// memory controller of cgroup v1 (`legacy`) or v2.
///
/// # Errors
/// The type information cannot be read, or lacks a required field.
pub fn bypass(bytes: &[u8], legacy: bool) -> Result<(Offsets, Memory)> {
    let btf = Btf::parse(bytes)?;
    Ok((offsets(&btf)?, memory(&btf, legacy)))
}

fn offsets(btf: &Btf<'_>) -> Result<Offsets> {
    let sock = btf.structure("sock").ok_or(BtfError::Missing("struct sock"))?;
    let tcp = btf.structure("tcp_sock").ok_or(BtfError::Missing("struct tcp_sock"))?;
    let field = |of, path| btf.offset(of, path).ok_or(BtfError::Missing(path));
    Ok(Offsets {
        rmem_alloc: field(sock, "sk_backlog.rmem_alloc")?,
        rcvlowat: field(sock, "sk_rcvlowat")?,
        shutdown: field(sock, "sk_shutdown")?,
        owned: field(sock, "sk_lock.owned")?,
        cookie: field(sock, "__sk_common.skc_cookie")?,
        copied_seq: field(tcp, "copied_seq")?,
        write_seq: field(tcp, "write_seq")?,
        socket: field(sock, "sk_socket")?,
        state: field(sock, "__sk_common.skc_state")?,
        err: field(sock, "sk_err")?,
        wmem_queued: field(sock, "sk_wmem_queued")?,
        sndbuf: field(sock, "sk_sndbuf")?,
        max_window: field(tcp, "max_window")?,
        notsent_lowat: field(tcp, "notsent_lowat")?,
        snd_nxt: field(tcp, "snd_nxt")?,
        snd_una: field(tcp, "snd_una")?,
        ulp: field(tcp, "inet_conn.icsk_ulp_ops")?,
    })
}

/// Counts that this kernel does not have stay 0; the programs do not check them.
fn memory(btf: &Btf<'_>, legacy: bool) -> Memory {
    let field = |of, path| btf.structure(of).and_then(|of| btf.offset(of, path));
    let of_protocol = || {
        let prot = field("sock", "__sk_common.skc_prot")?;
        let (allocated, limits) = (field("proto", "memory_allocated")?, field("proto", "sysctl_mem")?);
        Some((prot, allocated, limits, field("proto", "memory_pressure")?))
    };
    let mut memory = Memory::default();
    if let Some((prot, allocated, limits, pressed)) = of_protocol() {
        memory = Memory { prot, allocated, limits, pressed, ..memory };
    }
    memory.group = field("sock", "sk_memcg").unwrap_or_default();
    let of_counter = || {
        let (usage, max) = (field("page_counter", "usage")?, field("page_counter", "max")?);
        Some((field("mem_cgroup", "tcpmem")?, usage, max, field("page_counter", "parent")?))
    };
    let of_pressure = || Some((field("mem_cgroup", "socket_pressure")?, field("mem_cgroup", "css.parent")?));
    if memory.group == 0 {
        return memory;
    }
    if legacy && let Some((counter, usage, max, counter_parent)) = of_counter() {
        memory = Memory { counter, usage, max, counter_parent, ..memory };
    }
    if !legacy && let Some((pressed_until, group_parent)) = of_pressure() {
        memory = Memory { pressed_until, group_parent, ..memory };
    }
    memory
}

/// Finds the fields that the splice program reads.
///
/// # Errors
/// The errors of [`bypass`].
pub fn send_buffer(bytes: &[u8]) -> Result<SendBuffer> {
    let btf = Btf::parse(bytes)?;
    let sock = btf.structure("sock").ok_or(BtfError::Missing("struct sock"))?;
    let tcp = btf.structure("tcp_sock").ok_or(BtfError::Missing("struct tcp_sock"))?;
    let field = |of, path| btf.offset(of, path).ok_or(BtfError::Missing(path));
    Ok(SendBuffer {
        write_seq: field(tcp, "write_seq")?,
        sndbuf: field(sock, "sk_sndbuf")?,
        wmem_queued: field(sock, "sk_wmem_queued")?,
    })
}

/// The members of a structure: where they start in the bytes, how many there are, and whether offsets contain bit field
/// sizes.
#[derive(Clone, Copy)]
struct Structure {
    name: u32,
    members: usize,
    count: usize,
    bit_fields: bool,
}

#[derive(Clone, Copy)]
enum Type {
    /// A structure or union.
    Structure(Structure),
    /// Another name for, or a qualifier of, that type.
    Alias(u32),
    /// A type without members.
    Other,
}

struct Btf<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    /// Start of each type, by id. A kernel has over a hundred thousand types.
    starts: Vec<u32>,
}

impl<'a> Btf<'a> {
    /// Walks the types once. Their sizes differ, so this is the only way to number them.
    fn parse(bytes: &'a [u8]) -> Result<Self> {
        let magic = bytes.get(..2).map(|raw| u16::from_ne_bytes([raw[0], raw[1]]));
        if magic != Some(MAGIC) {
            return Err(BtfError::Malformed("no magic number"));
        }
        let part = |at: usize| -> Result<&'a [u8]> {
            let start = word(bytes, 4)? as usize + word(bytes, at)? as usize;
            let end = start + word(bytes, at + 4)? as usize;
            bytes.get(start..end).ok_or(BtfError::Malformed("a section is truncated"))
        };
        let (table, strings) = (part(8)?, part(16)?);
        // Type 0 is void and is not in the table.
        let mut starts = Vec::with_capacity(table.len() / (2 * TYPE_BYTES));
        let mut at = 0;
        while at < table.len() {
            starts.push(u32::try_from(at).map_err(|_| BtfError::Malformed("it is too large"))?);
            at += entry(table, at)?.1;
        }
        Ok(Self { bytes: table, strings, starts })
    }

    fn kind(&self, id: u32) -> Option<Type> {
        let start = *self.starts.get(id.checked_sub(1)? as usize)?;
        entry(self.bytes, start as usize).ok().map(|(kind, _)| kind)
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn structure(&self, name: &str) -> Option<Structure> {
        // A declaration without members is not a definition.
        self.starts.iter().find_map(|start| match entry(self.bytes, *start as usize).ok()?.0 {
            Type::Structure(found) if found.count > 0 && self.name(found.name) == name.as_bytes() => {
                Some(found)
            }
            _ => None,
        })
    }

    /// The structure behind a type, through aliases.
    fn resolve(&self, mut id: u32) -> Option<Structure> {
        for _ in 0..DEPTH_MAX {
            match self.kind(id)? {
                Type::Structure(found) => return Some(found),
                Type::Alias(other) => id = other,
                Type::Other => return None,
            }
        }
        None
    }

    /// Offset in bytes of a field, given as the path of names that leads to it.
    fn offset(&self, of: Structure, path: &str) -> Option<u32> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let (bits, kind) = self.member(of, first.as_bytes(), 0)?;
        let inner = match rest {
            Some(rest) => self.offset(self.resolve(kind)?, rest)?,
            None => 0,
        };
        bits.is_multiple_of(8).then_some(bits / 8 + inner)
    }

    /// Offset in bits and type of a member, including members of anonymous structures and unions.
    fn member(&self, of: Structure, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        for index in 0..of.count {
            let at = of.members + index * MEMBER_BYTES;
            let (named, kind) = (word(self.bytes, at).ok()?, word(self.bytes, at + 4).ok()?);
            let raw = word(self.bytes, at + 8).ok()?;
            let bits = if of.bit_fields { raw & 0x00ff_ffff } else { raw };
            if self.name(named) == name {
                return Some((bits, kind));
            }
            if self.name(named).is_empty()
                && depth < DEPTH_MAX
                && let Some(inner) = self.resolve(kind)
                && let Some((inner_bits, kind)) = self.member(inner, name, depth + 1)
            {
                return Some((bits + inner_bits, kind));
            }
        }
        None
    }
}

/// One entry of the type table and its length, by the kernel's Documentation/bpf/btf.rst.
fn entry(table: &[u8], at: usize) -> Result<(Type, usize)> {
    let (name, info) = (word(table, at)?, word(table, at + 4)?);
    let (count, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
    let extra = match kind {
        // void, pointer, forward, typedef, volatile, const, restrict, function, float, type tag
        0 | 2 | 7..=12 | 16 | 18 => 0,
        // integer, variable, declaration tag
        1 | 14 | 17 => 4,
        // array
        3 => 12,
        KIND_STRUCT | KIND_UNION => MEMBER_BYTES * count,
        // enumeration, prototype
        6 | 13 => 8 * count,
        // section, 64-bit enumeration
        15 | 19 => 12 * count,
        _ => return Err(BtfError::Malformed("an unknown kind of type")),
    };
    let members = at + TYPE_BYTES;
    let found = match kind {
        KIND_STRUCT | KIND_UNION => {
            Type::Structure(Structure { name, members, count, bit_fields: info >> 31 == 1 })
        }
        // typedef, volatile, const, restrict, type tag
        8..=11 | 18 => Type::Alias(word(table, at + 8)?),
        _ => Type::Other,
    };
    Ok((found, TYPE_BYTES + extra))
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let raw = bytes.get(at..at + 4).and_then(|raw| raw.try_into().ok());
    raw.map(u32::from_ne_bytes).ok_or(BtfError::Malformed("it ends too early"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Type information with `struct inner { int a; int b; }` and `struct outer { int x; union { int y; alias z; }; }`,
    /// where alias is inner, after types of other sizes.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0inner\0a\0b\0outer\0x\0y\0z\0alias\0";
        let name = |wanted: &str| {
            let wanted = [b"\0", wanted.as_bytes(), b"\0"].concat();
            let at = strings.windows(wanted.len()).position(|window| window == wanted).unwrap();
            u32::try_from(at).unwrap() + 1
        };
        let types = [
            vec![name("int"), 1 << 24, 4, 32],
            vec![0, 3 << 24, 0, 1, 1, 4],
            vec![name("inner"), 4 << 24 | 2, 8, name("a"), 1, 0, name("b"), 1, 32],
            vec![0, 5 << 24 | 2, 8, name("y"), 1, 0, name("z"), 6, 0],
            vec![name("outer"), 1 << 31 | 4 << 24 | 2, 12, name("x"), 1, 32 << 24, 0, 4, 32],
            vec![name("alias"), 8 << 24, 3],
        ]
        .concat();
        let length = u32::try_from(types.len() * 4).unwrap();
        let header = [24, 0, length, length, u32::try_from(strings.len()).unwrap()];
        let mut bytes = [MAGIC.to_ne_bytes(), [1, 0]].concat();
        header.iter().chain(&types).for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_through_anonymous_and_named_members() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        let outer = btf.structure("outer").unwrap();
        let found = ["x", "y", "z", "z.b", "w", "x.b"].map(|path| btf.offset(outer, path));
        assert_eq!(found, [Some(0), Some(4), Some(4), Some(8), None, None]);
        assert!(btf.structure("missing").is_none());
    }

    #[test]
    fn truncated_or_foreign_btf_is_an_error() {
        let bytes = sample();
        assert_eq!(bypass(&bytes, false), Err(BtfError::Missing("struct sock")));
        for length in 0..bytes.len() {
            assert!(matches!(Btf::parse(&bytes[..length]), Err(BtfError::Malformed(_))), "{length}");
        }
    }

    #[test]
    fn running_kernel_has_the_fields() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel shows no type information");
            return;
        };
        for legacy in [true, false] {
            let (offsets, memory) = bypass(&bytes, legacy).unwrap();
            assert!(offsets.rmem_alloc > 0 && offsets.copied_seq > offsets.rcvlowat, "{offsets:?}");
            assert!(memory.prot > 0 && memory.allocated > 0 && memory.limits > 0, "{memory:?}");
            assert!(memory.counter == 0 || memory.pressed_until == 0, "at most one of the two: {memory:?}");
        }
    }
}
