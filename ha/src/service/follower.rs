//! The slave's side: one thread, one transport, one connection to the master.
//!
//! The loop carries out what the connection machine asks for, one action after the other. At any
//! time at most one receive is outstanding: of a header into a small buffer, of a body straight
//! into the mapped log, or of bytes to be compared. The receiver of the store is open exactly while the
//! connection is in TRANSFER; it is finished, and so what was not published erased, before anything
//! else happens to the log.

mod following;
mod join;
mod reports;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use epochlog_engine::{Epoch, ReceiveWindow};

use super::clock::{now_ms, until};
use super::runtime_info::ClientInfo;
use super::{Core, LONGEST_WAIT, SLAVE_THREAD};
use crate::transport::{Close, Event, Transport, TransportStats, Window};
use following::Following;

impl Window for ReceiveWindow {
    fn room(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// Orders to the thread.
pub(super) enum Order {
    /// Follow this master; the answer comes when an older connection is over.
    Follow(Target, Sender<()>),
    /// Follow nobody; the answer comes when the connection is over and what it left is erased.
    Stop(Sender<()>),
    /// The log has been flushed further.
    Flushed,
    /// Tell about the connection.
    Info(Sender<(Option<ClientInfo>, TransportStats)>),
    /// End the thread.
    End,
}

/// Whom to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) epoch: Epoch,
    pub(super) master_addr: SocketAddr,
}

pub(super) type SlaveTransport = Box<dyn Transport<ReceiveWindow, Vec<u8>>>;

pub(super) struct Follower {
    core: Arc<Core>,
    transport: SlaveTransport,
    following: Option<Following>,
    /// Orders that wait for the connection to be over.
    stopping: Option<(Option<Target>, Sender<()>)>,
    ending: bool,
}

impl Follower {
    pub(super) fn new(core: Arc<Core>, transport: SlaveTransport) -> Self {
        Self {
            core,
            transport,
            following: None,
            stopping: None,
            ending: false,
        }
    }

    /// The body of the thread.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        let mut silent = false;
        loop {
            self.orders();
            if self.ending {
                return self.finish();
            }
            self.act();
            let longest = self.reports(silent);
            let now = now_ms();
            let due = self
                .following
                .as_ref()
                .map_or(u64::MAX, Following::next_due_ms);
            if let Err(error) = self.transport.wait(until(due, now, longest), &mut events) {
                tracing::error!(%error, "the transport of the slave has failed");
                self.core.lost_thread(SLAVE_THREAD, &error.to_string());
                return;
            }
            silent = events.is_empty();
            for event in events.drain(..) {
                self.event(event);
            }
            if let Some(following) = &mut self.following {
                following.tick();
            }
        }
    }

    /// Sends the report that waits, or holds it for more that is coming in: `silent` says that
    /// nothing came since the last look. Returns how long the loop may sleep.
    fn reports(&mut self, silent: bool) -> Duration {
        let (None, Some(following)) = (&self.stopping, &mut self.following) else {
            return LONGEST_WAIT;
        };
        let more_is_there = self.transport.is_ready();
        following.report(more_is_there, silent, &self.core, &mut self.transport)
    }

    fn orders(&mut self) {
        for order in self.core.follower.take() {
            match order {
                Order::Follow(target, done) => self.change(Some(target), done),
                Order::Stop(done) => self.change(None, done),
                Order::Flushed => {
                    if let Some(following) = &mut self.following {
                        following.flushed(&self.core);
                    }
                }
                Order::Info(tell) => {
                    let info = self.following.as_mut().map(|it| it.info(&self.core));
                    let info = (info, self.transport.stats());
                    // Whoever asked may have given up.
                    let _ = tell.send(info);
                }
                Order::End => self.ending = true,
            }
        }
    }

    /// Follows `target` (or nobody) once the present connection is over.
    fn change(&mut self, target: Option<Target>, done: Sender<()>) {
        match self.following.as_ref().and_then(Following::conn) {
            Some(conn) => {
                self.transport.close(conn, Close::Reset);
                self.stopping = Some((target, done));
            }
            None => self.changed(target, &done),
        }
    }

    fn changed(&mut self, target: Option<Target>, done: &Sender<()>) {
        self.following = target.map(|target| Following::new(&self.core, target));
        let _ = done.send(());
    }

    /// Carries out what is to be done next, unless the connection is being given up.
    fn act(&mut self) {
        if let (None, Some(following)) = (&self.stopping, &mut self.following) {
            following.act(&self.core, &mut self.transport);
        }
    }

    fn event(&mut self, event: Event<ReceiveWindow>) {
        let Some(following) = &mut self.following else {
            return;
        };
        if following.conn() != Some(event.conn()) {
            return;
        }
        match event {
            Event::Connected { .. } => following.connected(),
            Event::Sent { .. } => following.sent(),
            Event::Received { into, len, .. } => {
                following.received(into, len, &self.core);
                self.act();
            }
            Event::Closed {
                reason, received, ..
            } => {
                // The window goes back to the log first: it counts as written to.
                drop(received);
                following.over(&reason, &self.core);
                if let Some((target, done)) = self.stopping.take() {
                    self.changed(target, &done);
                }
            }
            Event::Accepted { conn, .. } => self.transport.close(conn, Close::Reset),
        }
    }

    /// Ends the connection, waits for its end, and erases what it left.
    fn finish(&mut self) {
        let conn = self.following.as_ref().and_then(Following::conn);
        if let Some(conn) = conn {
            self.transport.close(conn, Close::Reset);
        }
        let mut events = Vec::new();
        let give_up = now_ms() + 5000;
        while self
            .following
            .as_ref()
            .is_some_and(|it| it.conn().is_some())
            && now_ms() < give_up
        {
            if self.transport.wait(LONGEST_WAIT, &mut events).is_err() {
                break;
            }
            for event in events.drain(..) {
                self.event(event);
            }
        }
        self.following = None;
    }
}
