//! Whether this machine's clock can be trusted, by the last comparison with the store's.

use super::Millis;

/// The clocks are compared again after this long, at the next step.
const COMPARE_AGAIN_MS: Millis = 600_000;
/// While it is too far off, after this long.
const OFF_AGAIN_MS: Millis = 60_000;
/// After it was set and the store did not answer, after this long.
const SET_AGAIN_MS: Millis = 2_000;

/// Why a comparison gave no usable clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoComparison {
    /// The clock is too far off.
    Off,
    /// The store did not answer.
    Silent,
}

/// How far this clock is from the store's. All times are in milliseconds, by the wall clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// This machine's is this much ahead.
    pub ahead: Millis,
    /// When they were compared.
    compared: Millis,
    /// It can be trusted: it was not set since the comparison, and was not too far off.
    pub known: bool,
}

impl Clocks {
    /// They have just been compared.
    pub fn new(ahead: Millis, wall: Millis) -> Self {
        Self { ahead, compared: wall, known: true }
    }

    /// This machine's clock was set.
    pub fn were_set(&mut self) {
        (self.compared, self.known) = (Millis::MIN, false);
    }

    /// Whether to compare them.
    pub fn are_due(&self, wall: Millis) -> bool {
        !(self.compared..self.compared.saturating_add(COMPARE_AGAIN_MS)).contains(&wall)
    }

    /// When the next step is, if something is `due` and nothing may be done before `held`. With a clock that cannot be
    /// trusted, the next step is a comparison.
    pub fn next(&self, due: Option<Millis>, held: Millis, draining: bool) -> Option<Millis> {
        match self.known || draining {
            true => due.map(|due| due.max(held)),
            false => Some(held),
        }
    }

    /// Takes the result of a comparison. Gives how long nothing may be started: a clock that was set, or is too far off,
    /// is not trusted until a comparison succeeds.
    pub fn found(&mut self, ahead: Result<Option<Millis>, NoComparison>, wall: Millis) -> Option<Millis> {
        // It went back without notice.
        self.known &= wall >= self.compared || self.compared == Millis::MIN;
        let again = match ahead {
            Ok(ahead) => {
                *self = Self::new(ahead.unwrap_or(self.ahead), wall);
                return None;
            }
            Err(NoComparison::Off) => {
                self.known = false;
                OFF_AGAIN_MS
            }
            // A silent store is no reason to doubt a good clock. The next look at a job reports the store.
            Err(NoComparison::Silent) if self.known => OFF_AGAIN_MS,
            Err(NoComparison::Silent) => SET_AGAIN_MS,
        };
        self.compared = wall - COMPARE_AGAIN_MS + again;
        (!self.known).then_some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_800_000_000_000;

    /// After the clock was set back by hours, everything that is due looks hours away. The scheduler must not sleep so long.
    #[test]
    fn a_clock_that_was_set_is_compared_again_soon() {
        let mut clocks = Clocks::new(0, NOW);
        let due = Some(NOW + 60_000);
        assert_eq!(clocks.next(due, 0, false), due);
        assert_eq!(clocks.next(due, NOW + 90_000, false), Some(NOW + 90_000), "not while it is held");
        assert_eq!(clocks.next(None, 0, false), None);
        clocks.were_set();
        let back = NOW - 5 * 3_600_000;
        let again = clocks.found(Err(NoComparison::Silent), back);
        assert_eq!(again, Some(SET_AGAIN_MS));
        assert_eq!(clocks.next(due, back + SET_AGAIN_MS, false), Some(back + SET_AGAIN_MS));
        assert_eq!(
            clocks.next(None, back + SET_AGAIN_MS, true),
            None,
            "unless all that is to be done is to end"
        );
    }

    #[test]
    fn a_clock_that_was_set_is_not_trusted_until_it_is_compared() {
        let mut clocks = Clocks::new(50, NOW);
        assert!(!clocks.are_due(NOW + 1000));
        clocks.were_set();
        let set = NOW + 86_400_000;
        assert!(clocks.are_due(set));
        assert_eq!(clocks.found(Err(NoComparison::Silent), set), Some(SET_AGAIN_MS));
        // It is compared again and again.
        for n in 1..5 {
            let then = set + n * SET_AGAIN_MS;
            assert!(!clocks.known && clocks.are_due(then) && !clocks.are_due(then - 1));
            assert_eq!(clocks.found(Err(NoComparison::Silent), then), Some(SET_AGAIN_MS));
        }
        assert_eq!(clocks.found(Ok(Some(70)), set + 20_000), None);
        assert_eq!((clocks.known, clocks.ahead, clocks.are_due(set + 21_000)), (true, 70, false));
    }

    #[test]
    fn a_clock_that_went_back_was_set() {
        let mut clocks = Clocks::new(0, NOW);
        assert!(clocks.are_due(NOW - 1));
        assert_eq!(clocks.found(Err(NoComparison::Silent), NOW - 1), Some(SET_AGAIN_MS));
    }

    #[test]
    fn a_clock_that_is_off_stays_untrusted_while_the_store_is_silent() {
        let mut clocks = Clocks::new(0, NOW);
        assert_eq!(clocks.found(Err(NoComparison::Off), NOW + COMPARE_AGAIN_MS), Some(OFF_AGAIN_MS));
        assert_eq!(clocks.found(Err(NoComparison::Silent), NOW + 700_000), Some(SET_AGAIN_MS));
        assert!(!clocks.known);
    }

    /// Negative control: without a reason to doubt the clock, a silent store changes nothing.
    #[test]
    fn a_good_clock_stays_trusted_while_the_store_is_silent() {
        let mut clocks = Clocks::new(50, NOW);
        let later = NOW + COMPARE_AGAIN_MS;
        assert!(clocks.are_due(later));
        assert_eq!(clocks.found(Err(NoComparison::Silent), later), None);
        assert_eq!((clocks.known, clocks.ahead), (true, 50));
        assert!(!clocks.are_due(later + 1) && clocks.are_due(later + OFF_AGAIN_MS));
        assert_eq!(clocks.found(Ok(None), later + OFF_AGAIN_MS), None);
        assert_eq!(clocks.ahead, 50, "a store that does not tell the time moves nothing");
    }
}
