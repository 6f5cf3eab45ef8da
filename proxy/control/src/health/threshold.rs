//! When checks change an endpoint's health: thresholds in both directions, so that one lost packet changes nothing.

use sluice_config::HealthCheck;

/// The health of one endpoint and the results in a row that contradict it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threshold {
    healthy: bool,
    against: u32,
}

impl Threshold {
    pub(crate) fn new(healthy: bool) -> Threshold {
        Threshold { healthy, against: 0 }
    }

    /// Records one result; returns the new state if it changed. A threshold of 0 counts as 1.
    pub(crate) fn observe(&mut self, success: bool, config: &HealthCheck) -> Option<bool> {
        if success == self.healthy {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        let needed = if success { config.healthy_after } else { config.unhealthy_after };
        if self.against < needed {
            return None;
        }
        *self = Threshold::new(success);
        Some(success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::tests::config;

    use proptest::prelude::*;

    fn flips(threshold: &mut Threshold, config: &HealthCheck, results: &[bool]) -> Vec<Option<bool>> {
        results.iter().map(|&success| threshold.observe(success, config)).collect()
    }

    #[test]
    fn health_changes_at_the_threshold() {
        let config = HealthCheck { healthy_after: 2, unhealthy_after: 3, ..config() };
        let mut threshold = Threshold::new(true);
        let down = [false, false, true, false, false, false, false];
        assert_eq!(flips(&mut threshold, &config, &down), [None, None, None, None, None, Some(false), None]);
        assert_eq!(
            flips(&mut threshold, &config, &[true, false, true, true, true]),
            [None, None, None, Some(true), None]
        );
    }

    proptest! {
        #[test]
        fn health_changes_after_exactly_the_configured_run(
            results in prop::collection::vec(any::<bool>(), 0..60),
            healthy_after in 0..5u32,
            unhealthy_after in 0..5u32,
        ) {
            let config = HealthCheck { healthy_after, unhealthy_after, ..config() };
            let mut threshold = Threshold::new(true);
            let mut state = true;
            for (end, &success) in results.iter().enumerate() {
                let run = results[..=end].iter().rev().take_while(|&&result| result == success).count() as u32;
                let needed = if success { healthy_after } else { unhealthy_after }.max(1);
                let expected = (success != state && run >= needed).then_some(success);
                prop_assert_eq!(threshold.observe(success, &config), expected);
                state = expected.unwrap_or(state);
            }
        }
    }
}
