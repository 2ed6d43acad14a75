//! The command `leasehold`.

fn main() {}
