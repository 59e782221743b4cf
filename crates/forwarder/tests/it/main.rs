//! Packets through the whole pipeline: bytes in, bytes out, and exactly the counters that should move.

mod bed;
mod drops;
mod encapsulation;
mod flows;
mod publish;
mod random;
mod requests;
