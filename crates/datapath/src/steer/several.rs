//! The steering programs of all interfaces, as one: the same filter on each.
//!
//! In: what one [`Steer`] takes. Out: what all of them say together.
//! Invariant: a change reaches every interface, or is an error that another call mends.

use forwarder::InterfaceId;

use super::{Changed, Ends, Filter, Steer, SteerCounts, SteerError};
use crate::attach::AttachMode;

/// One program an interface. Dropping it leaves the interfaces as they were found.
#[derive(Debug)]
pub struct Steers(Vec<Steer>);

impl Steers {
    /// Programs in the order of the interfaces.
    #[must_use]
    pub fn new(programs: Vec<Steer>) -> Self {
        Self(programs)
    }

    /// Where the programs run: in the driver if all do.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        let is_driver = |steer: &Steer| steer.mode() == AttachMode::Driver;
        if self.0.iter().all(is_driver) { AttachMode::Driver } else { AttachMode::Generic }
    }

    /// As [`Steer::may_change`].
    #[must_use]
    pub fn may_change(&mut self) -> bool {
        self.0.iter_mut().all(Steer::may_change)
    }

    /// As [`Steer::set_filter`].
    ///
    /// # Errors
    /// As there.
    pub fn set_filter(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
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
        self.0.iter_mut().try_for_each(|steer| steer.set_ends(wanted))
    }

    /// What the programs have done together.
    ///
    /// # Errors
    /// As [`Steer::counts`].
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let mut sum = SteerCounts::default();
        for steer in &self.0 {
            sum.add(&steer.counts()?);
        }
        Ok(sum)
    }

    /// The programs, in the order of the interfaces.
    pub(crate) fn each(&self) -> &[Steer] {
        &self.0
    }

    /// The program on one interface.
    pub(crate) fn on(&mut self, interface: InterfaceId) -> Option<&mut Steer> {
        self.0.get_mut(usize::from(interface.0))
    }

    fn change(
        &mut self,
        each: impl FnMut(&mut Steer) -> Result<Changed, SteerError>,
    ) -> Result<Changed, SteerError> {
        let mut sum = Changed::default();
        for changed in self.0.iter_mut().map(each) {
            let Changed { added, updated, removed } = changed?;
            sum.added += added;
            sum.updated += updated;
            sum.removed += removed;
        }
        Ok(sum)
    }
}
