//! The loop of the BFD thread. Each iteration runs commands, receives packets, handles due sessions
//! and then sleeps.
//!
//! An iteration receives a bounded number of packets, so that packets cannot delay the timers.
//! Iterations start at least one millisecond apart. Even with a thousand sessions, the thread
//! therefore runs at most a thousand iterations per second, instead of one per packet.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::num::Wrapping;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::handed::{Handed, HandedBfd};
use super::packet::Control;
use super::schedule::Schedule;
use super::session::{SLOT, Session};
use super::socket::{self, Datagram, Ear};
use super::{BfdChange, BfdConfig, BfdError, BfdPorts, BfdStatus, SessionState, Shared, count};

pub(crate) type Answer = Sender<Result<(), BfdError>>;

pub(crate) enum Command {
    Add(Box<BfdConfig>, Answer),
    Change(Box<BfdConfig>, Answer),
    Remove(String),
    Spare(Sender<Option<(String, Duration)>>),
    LetGo(Sender<HandedBfd>),
    End,
}

pub(crate) struct Worker {
    ports: BfdPorts,
    shared: Arc<Shared>,
    todo: Receiver<Command>,
    woken: OwnedFd,
    on_change: Box<dyn FnMut(BfdChange) + Send>,
    ears: [Option<Ear>; 2],
    sessions: Sessions,
    numbers: Wrapping<u64>,
}

/// The sessions, indexed by slot. The slot is the lower half of the session's discriminator.
#[derive(Default)]
struct Sessions {
    slots: Vec<Option<Watched>>,
    by_peer: HashMap<(IpAddr, u32), u32>,
    by_name: HashMap<String, u32>,
    schedule: Schedule,
}

struct Watched {
    config: BfdConfig,
    session: Session,
    mouth: UdpSocket,
    /// The time of the session's current entry in the schedule. All other entries of the session
    /// are outdated and ignored.
    scheduled: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(
        ports: BfdPorts,
        shared: Arc<Shared>,
        todo: Receiver<Command>,
        woken: OwnedFd,
        on_change: Box<dyn FnMut(BfdChange) + Send>,
    ) -> Self {
        let (ears, sessions) = ([None, None], Sessions::default());
        // The seed must not be zero, since xorshift would then return only zeros.
        let numbers = Wrapping(RandomState::new().hash_one(0) | 1);
        Self { ports, shared, todo, woken, on_change, ears, sessions, numbers }
    }

    pub(crate) fn run(mut self) {
        loop {
            let turn = Instant::now();
            while let Ok(command) = self.todo.try_recv() {
                match command {
                    Command::Add(config, answer) => drop(answer.send(self.add(*config, turn))),
                    Command::Change(config, answer) => drop(answer.send(self.change(*config, turn))),
                    Command::Remove(name) => self.remove(&name),
                    // Sending fails only if the requester no longer waits for the result.
                    Command::Spare(answer) => drop(answer.send(self.least_spare())),
                    Command::LetGo(answer) => return drop(answer.send(self.let_go())),
                    Command::End => return self.end(),
                }
            }
            self.hear_all();
            self.tick_all();
            std::thread::sleep(LEAST_TURN.saturating_sub(turn.elapsed()));
            self.sleep();
        }
    }

    fn add(&mut self, config: BfdConfig, now: Instant) -> Result<(), BfdError> {
        let key = (config.peer, config.scope);
        if self.sessions.by_name.contains_key(&config.name) {
            return Err(config.refused("name is already used by another session"));
        }
        if self.sessions.by_peer.contains_key(&key) {
            return Err(config.refused("peer is already used by another session"));
        }
        let slot = self.sessions.free_slot();
        let slot = slot.ok_or_else(|| config.refused("the limit of 65,536 sessions is reached"))?;
        let no_socket = |error| BfdError::Socket { name: config.name.clone(), error };
        let is_v4 = config.peer.is_ipv4();
        let ear = &mut self.ears[usize::from(is_v4)];
        if ear.is_none() {
            *ear = Some(Ear::new(is_v4, self.ports.own).map_err(no_socket)?);
        }
        let number = self.chance();
        let mouth = socket::mouth(config.local, config.peer, config.scope, self.ports.peer, number);
        let mouth = mouth.map_err(no_socket)?;
        // A discriminator must not be zero, so at least one bit of its upper half is set.
        let discriminator = (self.chance() | 1) << 16 | slot;
        let session = Session::new(discriminator, config.interval_us(), config.multiplier, now);
        let status = BfdStatus {
            peer: config.peer,
            state: session.state,
            since: SystemTime::now(),
            diagnostic: session.diagnostic,
            losses: 0,
        };
        self.shared.status().insert(config.name.clone(), status);
        self.sessions.insert(slot, Watched { config, session, mouth, scheduled: None });
        self.sessions.reschedule(slot);
        Ok(())
    }

    fn change(&mut self, config: BfdConfig, now: Instant) -> Result<(), BfdError> {
        let slot = self.sessions.by_name.get(&config.name).copied();
        let slot = slot.ok_or_else(|| config.refused("no session has this name"))?;
        let Some(watched) = self.sessions.get(slot) else { return Err(BfdError::Gone) };
        if !watched.config.keeps_session(&config) {
            return Err(config.refused("peer, scope and local cannot change while the session runs"));
        }
        watched.config = config.clone();
        self.with(slot, |session| session.change(config.interval_us(), config.multiplier, now));
        Ok(())
    }

    fn remove(&mut self, name: &str) {
        if let Some(mut watched) = self.sessions.remove(name) {
            let last = watched.session.admin_down();
            send(&watched.mouth, &last, &self.shared);
            self.shared.status().remove(name);
        }
    }

    fn least_spare(&self) -> Option<(String, Duration)> {
        let all = self.sessions.slots.iter().flatten();
        let spares = all.filter_map(|one| Some((one.config.name.clone(), one.session.spare()?)));
        spares.min_by_key(|(_, spare)| *spare)
    }

    /// Releases all sessions. Packets are neither sent nor received until another thread takes
    /// over.
    fn let_go(self) -> HandedBfd {
        let status = self.shared.status().clone();
        let [v6, v4] = self.ears;
        let hears = [v6.is_some(), v4.is_some()];
        let mut sockets: Vec<OwnedFd> = [v6, v4].into_iter().flatten().map(|ear| ear.socket.into()).collect();
        let mut sessions = Vec::new();
        for Watched { config, session, mouth, .. } in self.sessions.slots.into_iter().flatten() {
            let known = status.get(&config.name);
            let since = known.map_or_else(SystemTime::now, |known| known.since);
            let losses = known.map_or(0, |known| known.losses);
            sessions.push(Handed { config, session, since, losses });
            sockets.push(mouth.into());
        }
        HandedBfd { sessions, hears, sockets }
    }

    /// Takes over sessions before the loop starts.
    pub(crate) fn take(&mut self, handed: HandedBfd, now: Instant) -> io::Result<()> {
        let HandedBfd { sessions, hears, sockets } = handed;
        let mut sockets = sockets.into_iter();
        let mut next = || sockets.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
        for (index, _) in hears.into_iter().enumerate().filter(|(_, hears)| *hears) {
            self.ears[index] = Some(Ear::of(next()?, index == 1, self.ports.own)?);
        }
        for Handed { config, mut session, since, losses } in sessions {
            let mouth = socket::handed_mouth(next()?, config.peer, self.ports.peer)?;
            session.resume(now);
            let (state, diagnostic) = (session.state, session.diagnostic);
            let status = BfdStatus { peer: config.peer, state, since, diagnostic, losses };
            self.shared.status().insert(config.name.clone(), status);
            let slot = session.discriminator & SLOT;
            self.sessions.insert(slot, Watched { config, session, mouth, scheduled: None });
            self.sessions.reschedule(slot);
        }
        self.shared.is_provisional.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end(mut self) {
        if self.shared.is_provisional.load(Ordering::Relaxed) {
            return;
        }
        let names: Vec<String> = self.sessions.by_name.keys().cloned().collect();
        names.iter().for_each(|name| self.remove(name));
    }

    fn hear_all(&mut self) {
        for is_v4 in [true, false] {
            let index = usize::from(is_v4);
            for _ in 0..MOST_BATCHES {
                let Some(mut ear) = self.ears[index].take() else { break };
                let now = Instant::now();
                let more = ear.hear(is_v4, |datagram| self.heard(&datagram, now));
                self.ears[index] = Some(ear);
                // The kernel reports an ICMP error about an unreachable peer once, as a receive
                // error. Later packets can still be received.
                if !more.unwrap_or(true) {
                    break;
                }
            }
        }
    }

    fn heard(&mut self, datagram: &Datagram<'_>, now: Instant) {
        let counters = &self.shared.counters;
        count(&counters.received);
        //= RFC 5881 §5
        //# All received BFD Control packets that are demultiplexed to the session MUST be discarded if the received TTL or Hop
        //# Limit is not equal to 255.
        if datagram.hop_limit != 255 {
            return count(&counters.far);
        }
        let Some(control) = Control::parse(datagram.bytes) else { return count(&counters.malformed) };
        let slot = self.sessions.find(control.your_discriminator, datagram.from, datagram.scope);
        let Some(slot) = slot else { return count(&counters.stray) };
        self.with(slot, |session| session.received(&control, now));
    }

    fn tick_all(&mut self) {
        let now = Instant::now();
        while let Some((at, slot)) = self.sessions.schedule.pop(now) {
            if self.sessions.is_current(slot, at) {
                let chance = self.chance();
                self.with(slot, |session| session.tick(now, chance));
            }
        }
    }

    /// Applies `happen` to a session, sends the packet that `happen` returns, and reports a state
    /// change.
    fn with(&mut self, slot: u32, happen: impl FnOnce(&mut Session) -> Option<Control>) {
        let Some(watched) = self.sessions.get(slot) else { return };
        let from = watched.session.state;
        if let Some(packet) = happen(&mut watched.session) {
            send(&watched.mouth, &packet, &self.shared);
        }
        let (to, diagnostic) = (watched.session.state, watched.session.diagnostic);
        if from != to {
            let name = watched.config.name.clone();
            if let Some(status) = self.shared.status().get_mut(&name) {
                (status.state, status.diagnostic, status.since) = (to, diagnostic, SystemTime::now());
                status.losses += u64::from(from == SessionState::Up);
            }
            tracing::debug!(peer = name, %from, %to, ?diagnostic, "BFD session state changed");
            (self.on_change)(BfdChange { name, from, to, diagnostic });
        }
        self.sessions.reschedule(slot);
    }

    /// Sleeps until a packet arrives, a command is sent or a deadline expires.
    fn sleep(&self) {
        let wait = self.sessions.schedule.next().map(|at| at.saturating_duration_since(Instant::now()));
        let wait = wait.map(TimeSpec::from);
        let ears = self.ears.iter().flatten().map(|ear| ear.socket.as_fd());
        let fds = ears.chain([self.woken.as_fd()]);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // If the call fails, for example because of a signal, the next iteration simply starts
        // earlier.
        _ = ppoll(&mut fds, wait, None);
        let mut bytes = [0; 64];
        if fds.last().and_then(PollFd::any) == Some(true) {
            _ = nix::unistd::read(&self.woken, &mut bytes);
        }
    }

    /// Returns a random number (Marsaglia's xorshift64) for jitter and discriminators. The numbers
    /// are not secret.
    fn chance(&mut self) -> u32 {
        self.numbers ^= self.numbers << 13;
        self.numbers ^= self.numbers >> 7;
        self.numbers ^= self.numbers << 17;
        u32::try_from(self.numbers.0 >> 32).unwrap_or(0)
    }
}

impl Sessions {
    fn free_slot(&self) -> Option<u32> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        u16::try_from(free).ok().map(u32::from)
    }

    fn insert(&mut self, slot: u32, watched: Watched) {
        self.by_name.insert(watched.config.name.clone(), slot);
        self.by_peer.insert((watched.config.peer, watched.config.scope), slot);
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        if let Some(place) = self.slots.get_mut(index) {
            *place = Some(watched);
        }
    }

    fn remove(&mut self, name: &str) -> Option<Watched> {
        let slot = self.by_name.remove(name)?;
        let watched = self.slots.get_mut(slot as usize)?.take()?;
        self.by_peer.remove(&(watched.config.peer, watched.config.scope));
        Some(watched)
    }

    fn get(&mut self, slot: u32) -> Option<&mut Watched> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Finds the session for a received packet. `discriminator` is the Your Discriminator field of
    /// the packet. If this field is 0, the session is found by the address of the peer (RFC 5880
    /// §6.8.6). The address must match in both cases.
    fn find(&mut self, discriminator: u32, peer: IpAddr, scope: u32) -> Option<u32> {
        if discriminator == 0 {
            return self.by_peer.get(&(peer, scope)).copied();
        }
        let slot = discriminator & SLOT;
        let watched = self.get(slot)?;
        let is_meant = watched.session.discriminator == discriminator
            && (watched.config.peer, watched.config.scope) == (peer, scope);
        is_meant.then_some(slot)
    }

    /// Returns `true` if the session's current schedule entry has this time, and consumes the
    /// entry.
    fn is_current(&mut self, slot: u32, at: Instant) -> bool {
        self.get(slot)
            .is_some_and(|watched| watched.scheduled.take_if(|scheduled| *scheduled == at).is_some())
    }

    fn reschedule(&mut self, slot: u32) {
        let Some(watched) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let Some(at) = watched.session.deadline() else { return };
        // A later deadline needs no new entry, because it is checked again when the earlier entry
        // is reached.
        if watched.scheduled.is_none_or(|scheduled| at < scheduled) {
            watched.scheduled = Some(at);
            self.schedule.push(at, slot);
        }
    }
}

fn send(mouth: &UdpSocket, packet: &Control, shared: &Shared) {
    // If the peer does not run BFD, its ICMP error about an earlier packet makes this send fail, so
    // the packet is sent again.
    let sent = mouth.send(&packet.encode()).or_else(|_| mouth.send(&packet.encode()));
    count(if sent.is_ok() { &shared.counters.sent } else { &shared.counters.send_failed });
}

const LEAST_TURN: Duration = Duration::from_millis(1);
const MOST_BATCHES: usize = 32;
