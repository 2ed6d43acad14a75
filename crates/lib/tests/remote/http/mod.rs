//! Our own protocol, on the Durable Object worker on workerd. `leasehold serve` is tested with the
//! command line, which starts it.

mod kept;
mod kit;
mod proxied;
mod replay;
mod rewrites;
mod worker;
