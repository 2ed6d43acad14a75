//! The names of payloads, and which of them no reader needs any more.
//!
//! A name is `ORDINAL.TOKEN.SEQ.DIGEST`. The ordinal is one more than the ordinal in the pointer that the writer
//! read, so the published payloads count 1, 2, 3. A payload with ordinal n is therefore a witness: when it was
//! uploaded, n − 1 was published, and all below n − 1 had been replaced. A replaced payload is never published
//! again, so a sweep cannot race with a writer.

use std::time::Duration;

use leasehold_core::fence::Fence;

use crate::backends::object::bucket::ListedObject;

/// The prefix of a digest, which names leave out.
const SHA256: &str = "sha256:";

/// How many ordinals a sweep keeps, from the newest witness down: the witness, which is current or may become so, and
/// the one that was published when the witness was uploaded.
const KEPT: u64 = 2;

/// The parts of a payload's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PayloadName {
    /// Its number in the order of publication.
    pub ordinal: u64,
    /// The digest of its content.
    pub digest: String,
}

/// The name of the payload of this write.
pub(super) fn name(ordinal: u64, fence: &Fence) -> String {
    let digest = fence.digest.strip_prefix(SHA256).unwrap_or(&fence.digest);
    format!("{ordinal:08}.{}.{}.{digest}", fence.token, fence.seq)
}

impl PayloadName {
    /// Reads a name; None if it is no payload's.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let mut next = || parts.next();
        let (ordinal, token, seq, digest) = (next()?, next()?, next()?, next()?);
        let number =
            |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        let hex = digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (number(token).zip(number(seq)).is_some() && hex && next().is_none()).then_some(())?;
        Some(Self { ordinal: number(ordinal)?, digest: format!("{SHA256}{digest}") })
    }
}

/// The names in `folder` that were replaced at least `grace` ago, so that a reader that read the pointer before that
/// has had time to read the content.
///
/// `published`: the ordinal that the sweeper has just published. A higher one is younger, or is from before somebody
/// restored an older pointer, so it is no witness.
pub(super) fn sweepable(folder: &str, seen: &[ListedObject], published: u64, grace: Duration) -> Vec<String> {
    let old = |object: &ListedObject| object.age.is_some_and(|age| age >= grace);
    let ordinal =
        |object: &ListedObject| Some(PayloadName::parse(object.name.strip_prefix(folder)?)?.ordinal);
    let witnesses = seen.iter().filter(|object| old(object)).filter_map(ordinal).filter(|n| *n <= published);
    let Some(witness) = witnesses.max() else { return Vec::new() };
    let replaced = |n: u64| n.saturating_add(KEPT) < witness.saturating_add(1);
    let gone = |object: &&ListedObject| old(object) && ordinal(object).is_some_and(replaced);
    seen.iter().filter(gone).map(|object| object.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ab54d286f5e4a3d0a4d2a3f2b8f7ac6fe5d9a3b1f8e8a4f0c9d3e4b1a2f3c4d5";

    fn seen(ordinal: u64, age: u64) -> ListedObject {
        let name = format!("k.leasehold/{ordinal:08}.1.1.{DIGEST}");
        ListedObject { name, age: Some(Duration::from_secs(age)) }
    }

    fn swept(seen: &[ListedObject]) -> Vec<u64> {
        swept_after(u64::MAX, seen)
    }

    fn swept_after(published: u64, seen: &[ListedObject]) -> Vec<u64> {
        let names = sweepable("k.leasehold/", seen, published, Duration::from_secs(900));
        names.iter().map(|name| PayloadName::parse(&name["k.leasehold/".len()..]).unwrap().ordinal).collect()
    }

    #[test]
    fn names_come_back_and_nothing_else_does() {
        let name = format!("00000007.42.3.{DIGEST}");
        let read = PayloadName { ordinal: 7, digest: format!("sha256:{DIGEST}") };
        assert_eq!(PayloadName::parse(&name), Some(read));
        for wrong in [
            "",
            "x",
            "1.2.3",
            &format!("{name}.x"),
            &name.replace("42", "-1"),
            &name.replace("42", ""),
            &name.replace("ab5", "AB5"),
            &name.replace("ab5", "../"),
            &name.replace("00000007", "+7"),
        ] {
            assert_eq!(PayloadName::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_what_an_old_witness_saw_replaced_is_swept() {
        // 5 is current or being written: its writer saw 4 published.
        let all = [seen(1, 9_000), seen(2, 8_000), seen(3, 7_000), seen(4, 6_000), seen(5, 1_000)];
        assert_eq!(swept(&all), [1, 2, 3]);
        // The newest witness is too young: 3 may have been replaced a moment ago.
        let all = [seen(1, 9_000), seen(2, 8_000), seen(3, 7_000), seen(4, 6_000), seen(5, 899)];
        assert_eq!(swept(&all), [1, 2]);
        // A dead writer's upload is young, and stays as long as a reader's grace.
        assert_eq!(swept(&[seen(1, 10), seen(2, 8_000), seen(9, 8_000)]), [2]);
        assert_eq!(swept(&[seen(1, 9_000), seen(2, 9_000)]), [0; 0]);
        // An older pointer was put back: 4 and 5 are of another time, and 3 is what is named.
        let all = [seen(1, 9_000), seen(2, 8_000), seen(3, 7_000), seen(4, 6_000), seen(5, 1_000)];
        assert_eq!(swept_after(3, &all), [1]);
        assert_eq!(swept_after(5, &all), [1, 2, 3]);
        assert_eq!(swept_after(0, &all), [0; 0]);
        let unknown = ListedObject { age: None, ..seen(9, 0) };
        assert_eq!(swept(&[seen(1, 9_000), unknown]), [0; 0]);
        let foreign = ListedObject { name: "k.leasehold/readme.txt".into(), age: Some(Duration::MAX) };
        assert_eq!(swept(&[foreign, seen(2, 9_000)]), [0; 0]);
    }
}
