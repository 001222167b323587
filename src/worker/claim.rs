//! Claims: messages that are written in place, in a cell of the send queue.

use core::fmt;

use doorbell_core::Ticket;
use doorbell_core::provider::{Operation, PostFlags, Provider};
use doorbell_ffi::Rdma;
use doorbell_hotpath::LoneCell;

use crate::worker::Notice;
use crate::worker::batch::Batch;
use crate::worker::channel::SendErrorKind;
use crate::worker::half::{SendHalf, unposted};

/// The channel's next cell, lent to the application to write a message and send it. Dropping a claim sends nothing.
///
/// The cell first has the bytes of an earlier message. Only the claim reaches the bytes before the message is sent. Afterwards
/// the cell belongs to the device until the request is done, so the claim cannot be used again.
/// ```compile_fail,E0382
/// # fn f(channel: &mut doorbell::Channel) -> Result<(), Box<dyn std::error::Error>> {
/// let mut claim = channel.claim(64)?;
/// claim.send()?;
/// claim.bytes()[0] = 1;
/// # Ok(())
/// # }
/// ```
/// The borrowed bytes cannot be used after the message was sent.
/// ```compile_fail,E0505
/// # fn f(channel: &mut doorbell::Channel) -> Result<(), Box<dyn std::error::Error>> {
/// let mut claim = channel.claim(64)?;
/// let bytes = claim.bytes();
/// claim.send()?;
/// bytes[0] = 1;
/// # Ok(())
/// # }
/// ```
/// The channel cannot be used while it has a claim.
/// ```compile_fail,E0499
/// # fn f(channel: &mut doorbell::Channel) -> Result<(), Box<dyn std::error::Error>> {
/// let claim = channel.claim(64)?;
/// channel.send(b"in between")?;
/// claim.send()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a claim that is dropped sends nothing"]
pub struct Claim<'c, P: Provider = Rdma> {
    cell: LoneCell<'c, P::SendQueue>,
    notice: &'c mut Notice,
    len_bytes: u32,
}

impl<P: Provider> Claim<'_, P> {
    /// Returns the bytes of the message, as many as were claimed.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        part(self.cell.bytes(), self.len_bytes)
    }

    /// Copies the message into the cell. The claim was made for its length.
    #[inline(always)]
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        copy(self.cell.bytes(), bytes);
    }

    /// Makes the message shorter than was claimed; a greater length changes nothing.
    #[inline]
    pub fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = shorter(self.len_bytes, len_bytes);
    }

    /// Sends the message with its own doorbell.
    ///
    /// # Errors
    /// The message exceeds the peer's receives, or the device refused the post. The next message uses the same cell then.
    #[inline(always)]
    pub fn send(self) -> Result<Ticket, SendErrorKind> {
        self.post(Operation::Send, PostFlags::empty())
    }

    /// Posts the bytes by a SEND or a WRITE, with or without immediate.
    ///
    /// # Errors
    /// As for [`Claim::send`], and what [`Channel::post`](crate::Channel::post) refuses.
    #[inline(always)]
    pub fn post(self, operation: Operation, flags: PostFlags) -> Result<Ticket, SendErrorKind> {
        let notice = self.notice;
        self.cell
            .post(operation, self.len_bytes, flags)
            .map_err(|reason| unposted(notice, reason))
    }
}

impl<P: Provider> fmt::Debug for Claim<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// A claim within a batch: the message is staged after the requests that were pushed before. Dropping a claim stages nothing. See
/// [`Claim`].
#[must_use = "a claim that is dropped sends nothing"]
pub struct BatchClaim<'b, 'q, P: Provider = Rdma> {
    batch: &'b mut Batch<'q, P>,
    len_bytes: u32,
}

impl<P: Provider> BatchClaim<'_, '_, P> {
    /// Returns the bytes of the message, as many as were claimed.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        part(self.batch.inner.claimed(), self.len_bytes)
    }

    /// Copies the message into the cell. The claim was made for its length.
    #[inline(always)]
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        copy(self.batch.inner.claimed(), bytes);
    }

    /// Makes the message shorter than was claimed; a greater length changes nothing.
    #[inline]
    pub fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = shorter(self.len_bytes, len_bytes);
    }

    /// Stages the message.
    ///
    /// # Errors
    /// As for [`Batch::push_inline`].
    #[inline(always)]
    pub fn send(self) -> Result<Ticket, SendErrorKind> {
        self.push(Operation::Send, PostFlags::empty())
    }

    /// Stages the bytes as a SEND or a WRITE, with or without immediate.
    ///
    /// # Errors
    /// As for [`Batch::push_inline`].
    #[inline(always)]
    pub fn push(self, operation: Operation, flags: PostFlags) -> Result<Ticket, SendErrorKind> {
        let Batch { inner, notice } = self.batch;
        inner
            .push_cell(operation, self.len_bytes, flags)
            .map_err(|reason| notice.note_refused(reason))
    }
}

impl<P: Provider> fmt::Debug for BatchClaim<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchClaim")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> SendHalf<P> {
    /// Lends the next cell of the send queue; see [`Channel::claim`](crate::Channel::claim).
    ///
    /// # Errors
    /// As for [`Channel::claim`](crate::Channel::claim).
    #[inline(always)]
    pub fn claim(&mut self, len_bytes: usize) -> Result<Claim<'_, P>, SendErrorKind> {
        let len_bytes = fitting(len_bytes, self.sender.cell_bytes())?;
        let notice = &mut self.notice;
        match self.sender.cell() {
            Ok(cell) => Ok(Claim {
                cell,
                notice,
                len_bytes,
            }),
            Err(reason) => Err(unposted(notice, reason.into())),
        }
    }
}

impl<'q, P: Provider> Batch<'q, P> {
    /// Lends `len_bytes` bytes of the next cell, to be staged in this batch; see [`Channel::claim`](crate::Channel::claim).
    ///
    /// # Errors
    /// As for [`Channel::claim`](crate::Channel::claim).
    #[inline(always)]
    pub fn claim(&mut self, len_bytes: usize) -> Result<BatchClaim<'_, 'q, P>, SendErrorKind> {
        let len_bytes = fitting(len_bytes, self.inner.cell_bytes())?;
        if let Err(reason) = self.inner.cell() {
            return Err(self.notice.note_refused(reason));
        }
        Ok(BatchClaim {
            batch: self,
            len_bytes,
        })
    }
}

/// Returns the length of a message, if it fits into a cell of `bytes_max` bytes.
#[inline(always)]
fn fitting(bytes: usize, bytes_max: u32) -> Result<u32, SendErrorKind> {
    match u32::try_from(bytes) {
        Ok(fits) if fits <= bytes_max => Ok(fits),
        _ => Err(SendErrorKind::TooLong {
            bytes,
            bytes_max: bytes_max as usize,
        }),
    }
}

/// Returns the lesser of both lengths.
#[inline]
fn shorter(len_bytes: u32, asked: usize) -> u32 {
    u32::try_from(asked).map_or(len_bytes, |asked| asked.min(len_bytes))
}

/// Returns the first `len_bytes` bytes of a cell. The cell has as many.
#[inline(always)]
fn part(cell: &mut [u8], len_bytes: u32) -> &mut [u8] {
    cell.get_mut(..len_bytes as usize).unwrap_or_default()
}

/// Copies bytes into a cell that has room for them. No branch can panic.
#[inline(always)]
fn copy(cell: &mut [u8], bytes: &[u8]) {
    if let Some(cell) = cell.get_mut(..bytes.len()) {
        cell.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use doorbell_sim::Fabric;

    use crate::connect::connected::connected;
    use crate::worker::channel::SendErrorKind;
    use crate::worker::config::ChannelConfig;
    use crate::worker::event::Event;

    #[test]
    fn what_is_written_into_a_claim_is_what_arrives() {
        let fabric = Fabric::new();
        let [mut server, mut client] = connected(&fabric, &ChannelConfig::default());
        let channel = client.workers[0].channel(client.channel).unwrap();
        assert_eq!(channel.cell_bytes(), 256);
        let mut claim = channel.claim(100).unwrap();
        assert_eq!(claim.bytes().len(), 100);
        claim.bytes().fill(7);
        claim.truncate(80);
        claim.send().unwrap();
        channel.send(&[8; 256]).unwrap();
        let mut batch = channel.batch();
        let mut claim = batch.claim(3).unwrap();
        claim.bytes().copy_from_slice(b"one");
        claim.send().unwrap();
        batch.send(b"two").unwrap();
        let too_long = SendErrorKind::TooLong {
            bytes: 257,
            bytes_max: 256,
        };
        assert_eq!(batch.claim(257).map(drop), Err(too_long));
        batch.ring().unwrap();
        fabric.run_for(Duration::from_millis(1));
        let mut came = Vec::new();
        server.workers[0]
            .poll(|_, event| {
                if let Event::Received { message, .. } = event {
                    came.push(message.payload().to_vec());
                }
            })
            .unwrap();
        assert_eq!(
            came,
            [vec![7; 80], vec![8; 256], b"one".to_vec(), b"two".to_vec()]
        );
        let cells = client.workers[0].cells();
        // One for each request that may be in flight, in the next power of two above 128.
        assert_eq!((cells.blocks, cells.cells, cells.in_use), (1, 256, 256));
    }
}
