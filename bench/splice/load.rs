//! Load for a TCP proxy, and the server behind it. It needs only the standard library: `rustc --edition 2024 -O
//! load.rs`.
//!
//! `load serve` prints its port. The first 16 bytes of a client state how many bytes it sends per round and how many it
//! expects back, both little-endian. `load drive PORT CONNECTIONS UP DOWN SECONDS [ROUNDS]` runs rounds on each
//! connection, in a separate thread, until the time or the number of rounds is reached, and prints the number of
//! rounds, seconds, and the median and 99th percentile of a round in microseconds.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 256 * 1024;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments.get(at).map(|text| text.parse::<u64>().expect("a number"));
    match arguments.get(1).map(String::as_str) {
        Some("serve") => serve(),
        Some("drive") => {
            let [Some(port), Some(connections), Some(up), Some(down), Some(seconds)] = [2, 3, 4, 5, 6].map(number) else {
                panic!("usage: drive PORT CONNECTIONS UP DOWN SECONDS [ROUNDS]");
            };
            let rounds = number(7).unwrap_or(u64::MAX);
            drive(port as u16, connections, up, down, Duration::from_secs(seconds), rounds)
        }
        _ => panic!("usage: serve | drive PORT CONNECTIONS UP DOWN SECONDS [ROUNDS]"),
    }
}

fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for socket in listener.incoming() {
        let socket = socket?;
        thread::spawn(move || answer(socket));
    }
    Ok(())
}

fn answer(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut sizes = [0; 16];
    socket.read_exact(&mut sizes)?;
    let size = |at: usize| u64::from_le_bytes(sizes[at..at + 8].try_into().expect("8 bytes"));
    let (up, down) = (size(0), size(8));
    let mut buffer = vec![0; BLOCK];
    loop {
        take(&mut socket, up, &mut buffer)?;
        give(&mut socket, down, &buffer)?;
    }
}

fn take(socket: &mut TcpStream, mut bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
    while bytes > 0 {
        let wanted = buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        match socket.read(&mut buffer[..wanted])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => bytes -= got as u64,
        }
    }
    Ok(())
}

fn give(socket: &mut TcpStream, mut bytes: u64, buffer: &[u8]) -> io::Result<()> {
    while bytes > 0 {
        let piece = buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        socket.write_all(&buffer[..piece])?;
        bytes -= piece as u64;
    }
    Ok(())
}

fn drive(port: u16, connections: u64, up: u64, down: u64, time: Duration, rounds: u64) -> io::Result<()> {
    let one = move |rounds: u64| -> io::Result<Vec<u64>> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.write_all(&[up.to_le_bytes(), down.to_le_bytes()].concat())?;
        let mut buffer = vec![0; BLOCK];
        let mut times = Vec::new();
        let until = Instant::now() + time;
        while Instant::now() < until && (times.len() as u64) < rounds {
            let began = Instant::now();
            give(&mut socket, up, &buffer)?;
            take(&mut socket, down, &mut buffer)?;
            times.push(began.elapsed().as_micros() as u64);
        }
        Ok(times)
    };
    let began = Instant::now();
    let threads: Vec<_> = (0..connections).map(|_| thread::spawn(move || one(rounds))).collect();
    let mut times = Vec::new();
    for thread in threads {
        times.extend(thread.join().expect("no panic")?);
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0);
    println!("{} {seconds:.3} {} {}", times.len(), at(0.5), at(0.99));
    Ok(())
}
