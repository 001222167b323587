//! Traffic both ways between two Workers that were taken apart. All four halves are on one thread, so that what is
//! counted of a thread is counted of all of them.

use doorbell::provider::ArenaConfig;
use doorbell::worker::{ReceiveHalf, ReceiveWorker, SendHalf, SendWorker, Submitter};
use doorbell::{
    ChannelId, Deadline, Event, Lease, LocalWindow, Node, Operation, PostFlags, SendErrorKind, Turn, Wait,
    Woken, within,
};

use crate::traffic::{
    A_MOMENT, MESSAGE_BYTES, NO_ANSWER, POLLS_MAX, ROUNDS_TO_FLOOD, Stuck, message, number_of, part_of,
};
use crate::{End, Pair};

/// Slots of the memory that each half that sends leases from: more than its queue holds requests.
const SLOTS: u32 = 256;

/// The traffic of two Workers taken apart. Leases are filled and sent alone, in batches and inline. They are
/// submitted on the half's own thread and by submitters. There are one-sided operations, and messages that one
/// half received and the other sends on.
#[derive(Debug)]
pub struct Apart {
    a: Halves,
    b: Halves,
    /// The number of the next message.
    next: u64,
    requests: u64,
    rounds: u64,
    would_block: u64,
    // Outlives them.
    _node: Node,
}

/// One Worker's, and what is yet to come to them.
#[derive(Debug)]
struct Halves {
    sending: SendWorker,
    receiving: ReceiveWorker,
    channel: ChannelId,
    window: LocalWindow,
    submitters: [Submitter; 2],
    /// A message that came, for the half that sends: its memory goes home to the other.
    kept: Option<Lease>,
    messages: u64,
    written: u64,
    fetched: u64,
    is_wrong: bool,
}

impl Apart {
    /// Takes the Workers of a pair apart.
    ///
    /// # Errors
    /// There is no memory for the halves that send.
    pub fn new(pair: Pair) -> Result<Self, Stuck> {
        let Pair { a, b, node } = pair;
        Ok(Self {
            a: Halves::of(a)?,
            b: Halves::of(b)?,
            next: 0,
            requests: 0,
            rounds: 0,
            would_block: 0,
            _node: node,
        })
    }

    /// Requests posted so far.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// How often one was handed back, there being no credit.
    #[must_use]
    pub const fn would_block(&self) -> u64 {
        self.would_block
    }

    /// Goes on until so many requests more are posted and done.
    ///
    /// # Errors
    /// Something was refused, failed, lost or wrong.
    pub fn run(&mut self, requests: u64) -> Result<(), Stuck> {
        let end = self.requests.saturating_add(requests);
        while self.requests < end {
            for is_back in [false, true] {
                self.post(is_back)?;
                self.settle()?;
                if self.rounds % ROUNDS_TO_FLOOD == 0 {
                    self.flood(is_back)?;
                    self.settle()?;
                }
            }
            self.rounds = self.rounds.wrapping_add(1);
        }
        Ok(())
    }

    /// Waits at each half until nothing came for a moment, awake and asleep, once messages were refused for want of a
    /// credit and the peer has posted receives again.
    ///
    /// # Errors
    /// As for [`Apart::run`]; or it did not wait until the end.
    pub fn wait(&mut self) -> Result<(), Stuck> {
        for how in [Wait::Busy, Wait::SPIN_THEN_SLEEP] {
            self.flood(false)?;
            self.settle()?;
            self.outlast(how)?;
        }
        Ok(())
    }

    /// Waits at each half until nothing came for a moment.
    ///
    /// # Errors
    /// A half cannot be waited for, or it did not wait until the end.
    pub fn outlast(&mut self, how: Wait) -> Result<(), Stuck> {
        let Self { a, b, .. } = self;
        for halves in [a, b] {
            let mut waits = 0..POLLS_MAX;
            let moment = || Some((how, within(A_MOMENT)));
            while halves.receive(moment())? == Woken::Progress && waits.next().is_some() {}
            while halves.send(moment())? == Woken::Progress && waits.next().is_some() {}
            if waits.is_empty() || halves.is_wrong {
                return Err(Stuck("a wait at a half does not end"));
            }
        }
        Ok(())
    }

    /// Waits at the halves for what is there already: each finds it at once, and arms and sleeps for nothing.
    ///
    /// # Errors
    /// As for [`Apart::run`]; or nothing was found.
    pub fn find(&mut self, deadline: Deadline) -> Result<(), Stuck> {
        for how in [Wait::Busy, Wait::SpinThenSleep { spins: 0 }] {
            for is_back in [false, true] {
                let number = self.number();
                let (from, to) = self.ends(is_back);
                let lease = from.filled(number)?;
                let flags = PostFlags::SIGNALED;
                let posted = from.half()?.post(Operation::Send, lease, flags);
                if posted.is_err() {
                    return Err(Stuck("a message was refused that is to be waited for"));
                }
                to.messages = to.messages.wrapping_add(1);
                let wait = Some((how, deadline));
                let found = [to.receive(wait)?, from.send(wait)?];
                if found != [Woken::Progress; 2] {
                    return Err(Stuck("a wait at a half finds nothing"));
                }
                self.requests = self.requests.wrapping_add(1);
                self.settle()?;
            }
        }
        Ok(())
    }

    /// One round of everything, one way.
    fn post(&mut self, is_back: bool) -> Result<(), Stuck> {
        let number = self.number();
        let (from, to) = self.ends(is_back);
        let (mut requests, mut messages) = (0_u64, 0_u64);
        if let Some(lease) = from.kept.take() {
            let posted = from.half()?.post(Operation::Send, lease, PostFlags::empty());
            if posted.is_err() {
                return Err(Stuck("a message was not sent on"));
            }
            (requests, messages) = (1, 1);
        }
        from.alone(number)?;
        from.batch(number, to)?;
        from.submit(number)?;
        // Two alone and one that is fetched; four of a batch, of which three are messages; and three submitted.
        requests = requests.wrapping_add(3 + 4 + 3);
        messages = messages.wrapping_add(2 + 2 + 3);
        let remote = part_of(&to.window, MESSAGE_BYTES as u64)?;
        let mut lease = from.sending.lease().ok_or(NO_MEMORY)?;
        lease.set_len_bytes(MESSAGE_BYTES);
        let posted = from
            .half()?
            .post(Operation::Read(remote), lease, PostFlags::SIGNALED);
        if posted.is_err() {
            return Err(Stuck("a READ of a half was refused"));
        }
        from.fetched = from.fetched.wrapping_add(1);
        to.messages = to.messages.wrapping_add(messages);
        to.written = to.written.wrapping_add(1);
        self.requests = self.requests.wrapping_add(requests);
        Ok(())
    }

    /// Messages until one is handed back.
    fn flood(&mut self, is_back: bool) -> Result<(), Stuck> {
        loop {
            let number = self.number();
            let (from, to) = self.ends(is_back);
            let lease = from.filled(number)?;
            let half = from.half()?;
            let credits = half.credits();
            match half.send_lease(lease) {
                Ok(_) => {
                    to.messages = to.messages.wrapping_add(1);
                    self.requests = self.requests.wrapping_add(1);
                }
                Err(error) => {
                    let refused =
                        Stuck("a half refused a message for another reason than that there is no credit");
                    let lease = error.item.ok_or(refused)?;
                    if error.kind != SendErrorKind::WouldBlock || credits != 0 {
                        return Err(refused);
                    }
                    from.sending.release(lease);
                    self.would_block = self.would_block.wrapping_add(1);
                    return Ok(());
                }
            }
        }
    }

    /// Polls all four until all that was sent has arrived.
    fn settle(&mut self) -> Result<(), Stuck> {
        let Self { a, b, .. } = self;
        for _ in 0..POLLS_MAX {
            let is_settled = a.poll()? & b.poll()?;
            if is_settled {
                return Ok(());
            }
        }
        Err(Stuck("what a half sent does not arrive"))
    }

    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Returns the sending side, then the receiving side.
    const fn ends(&mut self, is_back: bool) -> (&mut Halves, &mut Halves) {
        let Self { a, b, .. } = self;
        if is_back { (b, a) } else { (a, b) }
    }
}

const NO_MEMORY: Stuck = Stuck("there is no memory to lease for a half");

impl Halves {
    fn of(end: End) -> Result<Self, Stuck> {
        let End {
            worker,
            channel,
            window,
            submitters,
        } = end;
        let (sending, receiving) = worker
            .split(&ArenaConfig::new(SLOTS, 64))
            .map_err(|_| Stuck("a Worker cannot be taken apart"))?;
        Ok(Self {
            sending,
            receiving,
            channel,
            window,
            submitters,
            kept: None,
            messages: 0,
            written: 0,
            fetched: 0,
            is_wrong: false,
        })
    }

    fn half(&mut self) -> Result<&mut SendHalf, Stuck> {
        self.sending
            .channel(self.channel)
            .ok_or(Stuck("the channel of a half is closed"))
    }

    fn filled(&mut self, number: u64) -> Result<Lease, Stuck> {
        let mut lease = self.sending.lease().ok_or(NO_MEMORY)?;
        lease.fill(&message(number)).map_err(|_| NO_MEMORY)?;
        Ok(lease)
    }

    /// A message in a lease, and one inline.
    fn alone(&mut self, number: u64) -> Result<(), Stuck> {
        let lease = self.filled(number)?;
        let half = self.half()?;
        let is_sent = half.send_lease(lease).is_ok()
            && half
                .post_inline(Operation::SendWithImmediate(NO_ANSWER), &message(number))
                .is_ok();
        is_sent
            .then_some(())
            .ok_or(Stuck("a half refused a message alone"))
    }

    /// Requests of many kinds for one doorbell.
    fn batch(&mut self, number: u64, to: &Self) -> Result<(), Stuck> {
        let refused = Stuck("a half refused a batch");
        let target = part_of(&to.window, MESSAGE_BYTES as u64)?;
        let bytes = message(number);
        let [header, page, written, announced] = [(); 4].map(|()| self.filled(number));
        let leases = (header?, page?, written?, announced?);
        let (header, page, written, announced) = leases;
        let mut batch = self.half()?.batch();
        let none = PostFlags::empty();
        let is_staged = batch.push(Operation::Send, [header, page], none).is_ok()
            && batch.push(Operation::Write(target), [written], none).is_ok()
            && batch
                .push(
                    Operation::WriteWithImmediate(target, NO_ANSWER),
                    [announced],
                    none,
                )
                .is_ok()
            && batch
                .push_inline(Operation::Send, &bytes, PostFlags::SIGNALED)
                .is_ok();
        if !is_staged || batch.ring() != Ok(4) {
            return Err(refused);
        }
        Ok(())
    }

    /// A message by the half's own thread, and one by each submitter: the next poll posts them.
    fn submit(&mut self, number: u64) -> Result<(), Stuck> {
        let refused = Stuck("a submission to a half was refused");
        let lease = self.filled(number)?;
        let none = PostFlags::empty();
        if self.half()?.submit(Operation::Send, lease, none).is_err() {
            return Err(refused);
        }
        for submitter in &mut self.submitters {
            let mut lease = submitter.lease().ok_or(refused)?;
            lease.fill(&message(number)).map_err(|_| refused)?;
            if submitter.send(self.channel, lease).is_err() || submitter.failure().is_some() {
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Polls both; says whether nothing is to come any more.
    fn poll(&mut self) -> Result<bool, Stuck> {
        self.receive(None)?;
        self.send(None)?;
        if self.is_wrong {
            return Err(Stuck("a half failed, or took in another thing than was sent"));
        }
        Ok((self.messages, self.written, self.fetched) == (0, 0, 0))
    }

    /// Polls the half that receives, or waits at it.
    fn receive(&mut self, wait: Option<(Wait, Deadline)>) -> Result<Woken, Stuck> {
        let Self {
            receiving,
            kept,
            messages,
            written,
            is_wrong,
            ..
        } = self;
        let each = |mut turn: Turn<'_, _, ReceiveHalf>, event: Event<'_>| match event {
            Event::Received { message, .. } => {
                let number = number_of(message.payload());
                *is_wrong |= number == 0 || message.len_bytes() % MESSAGE_BYTES != 0;
                *messages = messages.wrapping_sub(1);
                match number % 3 {
                    0 if kept.is_none() => *kept = Some(message.keep()),
                    1 => turn.release(message.keep()),
                    _ => drop(message),
                }
            }
            Event::Written {
                payload_bytes,
                immediate,
            } => {
                *is_wrong |= payload_bytes as usize != MESSAGE_BYTES || immediate != NO_ANSWER;
                *written = written.wrapping_sub(1);
            }
            _ => *is_wrong = true,
        };
        let woken = match wait {
            None => receiving.poll(each).map(|_| Woken::Progress).ok(),
            Some((how, deadline)) => receiving.wait(how, deadline, each).ok(),
        };
        woken.ok_or(Stuck("the half that receives cannot be polled"))
    }

    /// Polls the half that sends, or waits at it.
    fn send(&mut self, wait: Option<(Wait, Deadline)>) -> Result<Woken, Stuck> {
        let Self {
            sending,
            fetched,
            is_wrong,
            ..
        } = self;
        let each = |mut turn: Turn<'_, _, SendHalf>, event: Event<'_>| match event {
            Event::Fetched { data, .. } => {
                turn.release(data);
                *fetched = fetched.wrapping_sub(1);
            }
            Event::Done { .. } => {}
            _ => *is_wrong = true,
        };
        let woken = match wait {
            None => sending.poll(each).map(|_| Woken::Progress).ok(),
            Some((how, deadline)) => sending.wait(how, deadline, each).ok(),
        };
        woken.ok_or(Stuck("the half that sends cannot be polled"))
    }
}
