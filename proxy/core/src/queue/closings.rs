//! How often an endpoint closes a connection after a response.
//!
//! Some servers close connections when more are in use than they have threads: Puma 5 and 6 do after ten requests in a
//! row if another connection waits to be accepted. Each then costs a new connection at both ends, and the next request
//! waits behind it. An endpoint that closes clearly more often than at the minimum of its limit has too many requests
//! under way.

/// Closings per unit of the limit before they are judged: three rounds of its connections. A server that closes each
/// connection after a fixed number of requests closes all of them at about the same time.
const ROUNDS: u32 = 3;
/// The share that is too many: it is more than a server that closes after 100 requests (Apache's default) closes in
/// three rounds, the first of which may come at once. Puma closes 3 to 9 % of its connections.
const TOO_MANY: f64 = 0.02;
/// How many times the usual share is too many, for a server that closes anyway.
const TIMES_USUAL: f64 = 3.0;

/// Counts responses and closings. Pure.
#[derive(Debug, Default)]
pub(super) struct Closings {
    responses: u32,
    closed: u32,
    /// The same of the current window.
    window: (u32, u32),
    /// The share of responses after which the endpoint closes with the fewest requests under way.
    usual: f64,
}

impl Closings {
    /// Records a response, and whether the endpoint closes the connection after it.
    pub(super) fn count(&mut self, closes: bool) {
        self.responses = self.responses.saturating_add(1);
        self.closed = self.closed.saturating_add(u32::from(closes));
        self.window.0 = self.window.0.saturating_add(1);
        self.window.1 = self.window.1.saturating_add(u32::from(closes));
    }

    /// Ends a window; returns whether there were so many closings in it that the limit should not grow before they are
    /// judged.
    pub(super) fn end_window(&mut self) -> bool {
        let (responses, closed) = std::mem::take(&mut self.window);
        share(closed, responses) > self.too_many()
    }

    /// Takes what was counted as usual, and starts again.
    pub(super) fn end_measurement(&mut self) {
        // One more: few responses may show none although the endpoint closes now and then.
        let usual = share(self.closed.saturating_add(1), self.responses);
        *self = Self { usual, ..Self::default() };
    }

    /// Forgets what was counted since the last measurement.
    pub(super) fn restart(&mut self) {
        *self = Self { usual: self.usual, ..Self::default() };
    }

    /// Whether the endpoint closes too often with this limit. Once there are enough closings to tell, counts from
    /// there.
    pub(super) fn are_too_many(&mut self, limit: u32) -> bool {
        if self.closed < limit.saturating_mul(ROUNDS) {
            return false;
        }
        let are_too_many = share(self.closed, self.responses) > self.too_many();
        self.restart();
        are_too_many
    }

    fn too_many(&self) -> f64 {
        TOO_MANY + TIMES_USUAL * self.usual
    }
}

fn share(closed: u32, responses: u32) -> f64 {
    f64::from(closed) / f64::from(responses.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of verdicts against the limit in 100 000 responses.
    fn verdicts(usual: impl Fn(u32) -> bool, under_load: impl Fn(u32) -> bool, limit: u32) -> usize {
        let mut closings = Closings::default();
        (0..300).for_each(|number| closings.count(usual(number)));
        closings.end_measurement();
        let judge = |number: &u32| {
            closings.count(under_load(*number));
            closings.are_too_many(limit)
        };
        (0..100_000).filter(judge).count()
    }

    #[test]
    fn an_endpoint_that_closes_more_often_than_usual_has_too_much() {
        assert!(verdicts(|_| false, |number| number % 14 == 0, 6) > 100);
        assert!(verdicts(|_| false, |number| number % 25 == 0, 6) > 50);
    }

    #[test]
    fn rare_closings_mean_nothing() {
        assert_eq!(verdicts(|_| false, |number| number % 400 == 0, 6), 0);
    }

    #[test]
    fn an_endpoint_that_always_closes_says_nothing() {
        assert_eq!(verdicts(|_| true, |_| true, 6), 0);
        assert_eq!(verdicts(|number| number % 10 == 0, |number| number % 8 == 0, 6), 0);
    }

    #[test]
    fn connections_that_all_end_after_a_hundred_requests_mean_nothing() {
        for limit in [1, 6, 100] {
            for first in [0, 50, 99] {
                let ends = |number: u32| (number / limit + first) % 100 == 99;
                assert_eq!(verdicts(|_| false, ends, limit), 0, "limit {limit}, first after {first}");
            }
        }
    }
}
