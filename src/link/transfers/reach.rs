//! Memory that the peer can access: its registration only for the peer, and its deregistration. Both take milliseconds, so threads do them.

use doorbell_core::provider::{MemoryError, Provider, RemoteAccess};
use doorbell_core::wire::RemoteWindow;

use crate::machine::makers::{Commission, Makers, Whom};
use crate::machine::reaper::Reaped;
use crate::memory::{GrantedRegion, Region};

/// State of the peer's access to memory.
pub(super) enum Reach<P: Provider> {
    /// The peer has no access.
    None,
    /// A thread registers the memory.
    Registering(Commission<GrantedRegion<P>, MemoryError>),
    /// The memory is registered.
    Granted(GrantedRegion<P>),
    /// A thread deregisters the memory.
    Fencing(Commission<(), MemoryError>),
}

impl<P: Provider> Reach<P> {
    /// Begins to register a range of a region for the peer, with this access.
    pub(super) fn register(
        region: &Region<P>,
        range: (usize, usize),
        access: RemoteAccess,
        (makers, whom): (&Makers, Whom),
    ) -> Self {
        let region = region.clone();
        // Registration pins the pages, which takes milliseconds for a large range.
        let register = move || region.grant(range, access).map_err(MemoryError::Provider);
        Self::Registering(makers.make(whom, None, register))
    }

    /// Whether a thread works on the memory.
    pub(super) const fn is_busy(&self) -> bool {
        matches!(self, Self::Registering(_) | Self::Fencing(_))
    }

    /// The key of the memory on this Worker's device, if it is registered.
    pub(super) fn key(&self, worker: usize) -> Option<RemoteWindow> {
        match self {
            Self::Granted(granted) => granted.key(worker),
            _ => None,
        }
    }

    /// The keys of the memory, with the Worker of each. `None` if it is not registered.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = (usize, RemoteWindow)>> {
        match self {
            Self::Granted(granted) => Some(granted.keys()),
            _ => None,
        }
    }

    /// Takes the result of the registration.
    ///
    /// # Errors
    /// A device did not register the memory.
    pub(super) fn look(&mut self) -> Result<(), MemoryError> {
        let Self::Registering(commission) = self else {
            return Ok(());
        };
        match commission.take() {
            Ok(None) => Ok(()),
            Ok(Some(granted)) => {
                *self = Self::Granted(Reaped::into_inner(granted));
                Ok(())
            }
            Err(error) => {
                *self = Self::None;
                Err(error)
            }
        }
    }

    /// Begins or continues to deregister the memory. Returns whether the peer has no access any more.
    ///
    /// # Errors
    /// A device refused or panicked. The peer keeps its access, and the device's leaks count the memory. The error is returned once.
    pub(super) fn fence(&mut self, (makers, whom): (&Makers, Whom)) -> Result<bool, MemoryError> {
        match core::mem::replace(self, Self::None) {
            Self::None => {}
            // A peer may guess a key that it was not sent, so the memory is deregistered once the registration is done.
            Self::Registering(commission) => *self = Self::Registering(commission),
            Self::Granted(granted) => {
                *self = Self::Fencing(makers.make(whom, None, move || granted.withdraw()));
            }
            Self::Fencing(fencing) => *self = Self::Fencing(fencing),
        }
        let Self::Fencing(fencing) = self else {
            return Ok(matches!(self, Self::None));
        };
        let fenced = fencing.take();
        if !matches!(fenced, Ok(None)) {
            *self = Self::None;
        }
        Ok(fenced?.is_some())
    }
}
