//! The only file that asks for randomness.

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 bits from the kernel. Every grant and every write id starts here.
pub fn seed() -> u128 {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only when interrupted before the pool is ready, which is worth waiting for.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    u128::from_le_bytes(bytes)
}
