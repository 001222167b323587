//! Memory that the peer reaches: registered for it alone, and taken out of its reach. Threads do both, since devices take milliseconds.

use doorbell_core::provider::{MemoryError, Provider, RemoteAccess};
use doorbell_core::wire::RemoteWindow;

use crate::machine::makers::{Commission, Makers, Whom};
use crate::machine::reaper::Reaped;
use crate::memory::{GrantedRegion, Region};

/// How far memory is in the peer's reach.
pub(super) enum Reach<P: Provider> {
    /// Not at all.
    None,
    /// It is being registered.
    Registering(Commission<GrantedRegion<P>, MemoryError>),
    /// It is registered.
    Granted(GrantedRegion<P>),
    /// It is being taken out of the peer's reach.
    Fencing(Commission<(), MemoryError>),
}

impl<P: Provider> Reach<P> {
    /// Has a part of a region registered for the peer, with this access.
    pub(super) fn register(
        region: &Region<P>,
        range: (usize, usize),
        access: RemoteAccess,
        (makers, whom): (&Makers, Whom),
    ) -> Self {
        let region = region.clone();
        // It pins the pages, which takes milliseconds for large ones.
        let register = move || region.grant(range, access).map_err(MemoryError::Provider);
        Self::Registering(makers.make(whom, None, register))
    }

    /// Whether a thread works on it.
    pub(super) const fn is_busy(&self) -> bool {
        matches!(self, Self::Registering(_) | Self::Fencing(_))
    }

    /// The key by which the peer reaches it over this Worker's device.
    pub(super) fn key(&self, worker: usize) -> Option<RemoteWindow> {
        match self {
            Self::Granted(granted) => granted.key(worker),
            _ => None,
        }
    }

    /// The keys by which the peer reaches it, with the Worker of each. `None` if it does not reach it.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = (usize, RemoteWindow)>> {
        match self {
            Self::Granted(granted) => Some(granted.keys()),
            _ => None,
        }
    }

    /// Takes what was registered.
    ///
    /// # Errors
    /// The device did not register it.
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

    /// Has it taken out of the peer's reach. Says whether it is.
    ///
    /// # Errors
    /// A device refused or panicked. The memory stays, in the peer's reach, and its leaks count it. This is said once.
    pub(super) fn fence(&mut self, (makers, whom): (&Makers, Whom)) -> Result<bool, MemoryError> {
        match core::mem::replace(self, Self::None) {
            Self::None => {}
            // A key that nobody was sent may be guessed: it goes as any other, once it is there.
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
