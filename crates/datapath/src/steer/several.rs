//! The steering programs of all interfaces, as one: the same filter on each.
//!
//! In: what one [`Steer`] takes. Out: what all of them say together.
//! Invariant: a change reaches every interface, or is an error that another call mends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use forwarder::InterfaceId;

use super::{Changed, Ends, Filter, Steer, SteerCounts, SteerError};
use crate::attach::AttachMode;

/// One program an interface. Dropping it leaves the interfaces as they were found.
#[derive(Debug)]
pub struct Steers {
    programs: Vec<Steer>,
    head_room: Arc<AtomicU8>,
}

impl Steers {
    /// Programs in the order of the interfaces.
    #[must_use]
    pub fn new(programs: Vec<Steer>) -> Self {
        Self { programs, head_room: Arc::default() }
    }

    /// The encapsulation overhead that most VIPs and prefixes have, for where no program opens head room.
    pub(crate) fn head_room(&self) -> Arc<AtomicU8> {
        Arc::clone(&self.head_room)
    }

    /// Where the programs run: all in one mode, but that a driver may leave XDP to the generic one.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        let modes = || self.programs.iter().map(Steer::mode);
        modes().find(|mode| *mode != AttachMode::Driver).unwrap_or(AttachMode::Driver)
    }

    /// As [`Steer::may_change`].
    #[must_use]
    pub fn may_change(&mut self) -> bool {
        self.programs.iter_mut().all(Steer::may_change)
    }

    /// As [`Steer::set_filter`].
    ///
    /// # Errors
    /// As there.
    pub fn set_filter(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        self.head_room.store(wanted.usual_encap_overhead(), Ordering::Relaxed);
        self.change(|steer| steer.set_filter(wanted))
    }

    /// As [`Steer::narrow_to`].
    ///
    /// # Errors
    /// As there.
    pub fn narrow_to(&mut self, next: &Filter) -> Result<Changed, SteerError> {
        self.change(|steer| steer.narrow_to(next))
    }

    /// As [`Steer::set_ends`].
    ///
    /// # Errors
    /// As there.
    pub fn set_ends(&mut self, wanted: &Ends) -> Result<(), SteerError> {
        self.programs.iter_mut().try_for_each(|steer| steer.set_ends(wanted))
    }

    /// What the programs have done together.
    ///
    /// # Errors
    /// As [`Steer::counts`].
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let mut sum = SteerCounts::default();
        for steer in &self.programs {
            sum.add(&steer.counts()?);
        }
        Ok(sum)
    }

    /// The programs, in the order of the interfaces.
    pub(crate) fn each(&self) -> &[Steer] {
        &self.programs
    }

    /// The program on one interface.
    pub(crate) fn on(&mut self, interface: InterfaceId) -> Option<&mut Steer> {
        self.programs.get_mut(usize::from(interface.0))
    }

    fn change(
        &mut self,
        each: impl FnMut(&mut Steer) -> Result<Changed, SteerError>,
    ) -> Result<Changed, SteerError> {
        let mut sum = Changed::default();
        for changed in self.programs.iter_mut().map(each) {
            let Changed { added, updated, removed } = changed?;
            sum.added += added;
            sum.updated += updated;
            sum.removed += removed;
        }
        Ok(sum)
    }
}
