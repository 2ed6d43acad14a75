//! Durations as people write them.

use core::fmt;
use core::time::Duration;

/// A duration to be shown: `1h20m`, `90s`, `1.5s`, `40ms`.
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if (1..1_000).contains(&millis) {
            return write!(f, "{millis}ms");
        }
        let (secs, rest) = (self.0.as_secs(), self.0.subsec_millis());
        if secs < 120 {
            return match rest {
                0 => write!(f, "{secs}s"),
                _ => write!(f, "{secs}.{}s", rest / 100),
            };
        }
        let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        let mut left = secs;
        for (size, unit) in units {
            if left >= size {
                write!(f, "{}{unit}", left / size)?;
                left %= size;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn durations_read_well() {
        let read = |ms| HumanDuration(Duration::from_millis(ms)).to_string();
        assert_eq!(read(40), "40ms");
        assert_eq!(read(90_000), "90s");
        assert_eq!(read(1_500), "1.5s");
        assert_eq!(read(4_800_000), "1h20m");
        assert_eq!(read(86_400_000), "1d");
    }
}
