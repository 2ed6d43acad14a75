//! The only file that asks for randomness.

/// 128 random bits from the system. Every grant and every write id starts here.
///
/// # Panics
///
/// If the system has no randomness to give: without it no grant would be unique.
pub fn seed() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives no random numbers");
    u128::from_le_bytes(bytes)
}
