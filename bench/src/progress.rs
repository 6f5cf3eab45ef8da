//! Shows what is being measured and how long the rest takes: a bar in a terminal, lines otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Approximate seconds per measurement for starting, checking and connecting.
const OVERHEAD_SECONDS: u64 = 1;

/// Counts planned seconds.
pub(super) struct Progress {
    bar: ProgressBar,
    started: Instant,
    total: u64,
    done: u64,
    lines: bool,
}

impl Progress {
    /// A bar for `total` planned seconds.
    pub(super) fn new(total: u64) -> Self {
        let lines = !std::io::stderr().is_terminal();
        let bar = ProgressBar::new(total);
        if lines {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{wide_bar} {percent}%  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, started: Instant::now(), total, done: 0, lines }
    }

    /// Shows what starts now.
    pub(super) fn begin(&self, what: &str) {
        self.bar.set_message(format!("{what}, {} left", in_words(self.left())));
    }

    /// Records a finished measurement of `seconds` with its result.
    pub(super) fn step(&mut self, seconds: u64, result: &str) {
        self.done += planned(seconds);
        self.bar.set_position(self.done);
        if self.lines {
            println!("{result} ({} left)", in_words(self.left()));
        } else {
            self.bar.println(result);
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Remaining time, at the pace so far; at first, as planned.
    fn left(&self) -> Duration {
        let rest = self.total.saturating_sub(self.done) as f64;
        let pace = match self.done {
            0 => 1.0,
            done => self.started.elapsed().as_secs_f64() / done as f64,
        };
        Duration::from_secs_f64(rest * pace)
    }
}

/// Seconds for a measurement of `seconds`, including the overhead.
pub(super) fn planned(seconds: u64) -> u64 {
    seconds + OVERHEAD_SECONDS
}

/// A duration in a suitable unit.
pub(super) fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6000 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_a_suitable_unit() {
        assert_eq!(in_words(Duration::from_secs(99)), "99 s");
        assert_eq!(in_words(Duration::from_secs(100)), "1 min");
        assert_eq!(in_words(Duration::from_secs(7200)), "2.0 h");
    }
}
