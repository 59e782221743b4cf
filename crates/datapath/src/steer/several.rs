//! Manages the steering programs of all interfaces, which have the same filter. A failed change may
//! be incomplete; a further call completes it.

use forwarder::InterfaceId;

use super::{Changed, Filter, Steer, SteerCounts, SteerError, TunnelEndpoints};
use crate::attach::AttachMode;

/// The steering programs of all interfaces. Dropping the value detaches the programs.
#[derive(Debug)]
pub struct Steers {
    programs: Vec<Steer>,
}

impl Steers {
    /// Creates the value from one program for each interface, in interface order.
    #[must_use]
    pub fn new(programs: Vec<Steer>) -> Self {
        Self { programs }
    }

    /// Returns the mode in which the programs run. The result is [`AttachMode::Generic`] if any
    /// program runs in generic mode.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        let modes = || self.programs.iter().map(Steer::mode);
        modes().find(|mode| *mode != AttachMode::Driver).unwrap_or(AttachMode::Driver)
    }

    /// Returns `true` if the filter of every interface can be changed. See [`Steer::may_change`].
    #[must_use]
    pub fn may_change(&mut self) -> bool {
        self.programs.iter_mut().all(Steer::may_change)
    }

    /// Updates the filter of every interface. See [`Steer::set_filter`].
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::set_filter`].
    pub fn set_filter(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        self.change(|steer| steer.set_filter(wanted))
    }

    /// Removes from every filter the entries that `next` does not contain. See
    /// [`Steer::narrow_to`].
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::narrow_to`].
    pub fn narrow_to(&mut self, next: &Filter) -> Result<Changed, SteerError> {
        self.change(|steer| steer.narrow_to(next))
    }

    /// Sets the tunnel endpoints and sources of every interface. See
    /// [`Steer::set_tunnel_endpoints`].
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::set_tunnel_endpoints`].
    pub fn set_tunnel_endpoints(&mut self, wanted: &TunnelEndpoints) -> Result<(), SteerError> {
        self.programs.iter_mut().try_for_each(|steer| steer.set_tunnel_endpoints(wanted))
    }

    /// Sets the counters of every interface to 0. See [`Steer::restart_counts`].
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::counts`].
    pub fn restart_counts(&mut self) -> Result<(), SteerError> {
        self.programs.iter_mut().try_for_each(Steer::restart_counts)
    }

    /// Returns the counters, summed over all interfaces.
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::counts`].
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let mut sum = SteerCounts::default();
        for steer in &self.programs {
            sum.add(&steer.counts()?);
        }
        Ok(sum)
    }

    /// Returns the programs in interface order.
    pub(crate) fn each(&self) -> &[Steer] {
        &self.programs
    }

    /// Returns the program of one interface.
    pub(crate) fn on(&mut self, interface: InterfaceId) -> Option<&mut Steer> {
        self.programs.get_mut(usize::from(interface.0))
    }

    fn change(
        &mut self,
        each: impl FnMut(&mut Steer) -> Result<Changed, SteerError>,
    ) -> Result<Changed, SteerError> {
        let mut sum = Changed::default();
        for changed in self.programs.iter_mut().map(each) {
            let Changed { added, removed } = changed?;
            sum.added += added;
            sum.removed += removed;
        }
        Ok(sum)
    }
}
