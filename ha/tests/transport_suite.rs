//! One suite, every transport: see `transport/stories.rs` for what is promised.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test stops at what it did not expect, and its sizes are small"
)]

#[path = "transport/bed.rs"]
mod bed;
#[path = "transport/peers.rs"]
mod peers;
#[path = "transport/stories.rs"]
mod stories;

use std::net::{IpAddr, SocketAddr};

use bed::{Boxed, Lease, Maker, Room, Side};
use peers::{Peer, SidePeer};

use epochlog_ha::{
    SimConfig, SimNet, StdTransport, TokioUringTransport, TransportConfig, UringTransport,
};

struct Std;

impl Maker for Std {
    fn make(&mut self, config: TransportConfig) -> Boxed {
        Box::new(StdTransport::new(config).unwrap())
    }
}

struct Uring;

impl Maker for Uring {
    fn make(&mut self, config: TransportConfig) -> Boxed {
        Box::new(UringTransport::new(config).unwrap())
    }
}

struct TokioUring;

impl Maker for TokioUring {
    fn make(&mut self, config: TransportConfig) -> Boxed {
        Box::new(TokioUringTransport::new(config).unwrap())
    }
}

/// Hosts 10.0.0.1, 10.0.0.2 and so on of one network.
struct Sim {
    net: SimNet<Room, Lease>,
    hosts: u8,
}

impl Sim {
    fn new() -> Self {
        let seed = seed();
        println!("network seed {seed}");
        Self {
            net: SimNet::new(seed, SimConfig::default()),
            hosts: 0,
        }
    }
}

impl Maker for Sim {
    fn make(&mut self, config: TransportConfig) -> Boxed {
        self.hosts += 1;
        Box::new(self.net.endpoint(self.addr().ip(), config))
    }

    fn addr(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 0, 0, self.hosts]), 0)
    }

    fn peer(&mut self, addr: SocketAddr) -> Box<dyn Peer> {
        let side = Side::new(self.make(TransportConfig::default()));
        Box::new(SidePeer::connect(side, addr))
    }
}

/// The stories as tests of one implementation.
macro_rules! suite {
    ($module:ident, $maker:expr, [$($story:ident),* $(,)?]) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $story() {
                    stories::$story(&mut $maker);
                }
            )*

            #[test]
            fn heads_and_bodies_of_all_sizes_arrive_in_order() {
                stories::heads_and_bodies_of_all_sizes_arrive_in_order(&mut $maker, seed());
            }

            #[test]
            fn heads_and_bodies_arrive_in_order_with_a_known_seed() {
                stories::heads_and_bodies_of_all_sizes_arrive_in_order(&mut $maker, 42);
            }
        }
    };
    ($module:ident, $maker:expr) => {
        suite!($module, $maker, also []);
    };
    ($module:ident, $maker:expr, also [$($more:ident),*]) => {
        suite!($module, $maker, [
            $($more,)*
            echo_with_receives_of_one_byte,
            half_frames_fill_one_receive,
            a_receive_may_end_between_its_least_and_its_room,
            a_window_is_filled_exactly,
            a_peer_that_stalls_holds_the_send_up,
            a_reset_in_the_middle_of_a_body_gives_the_buffers_back,
            closing_one_side_gives_its_own_buffers_back,
            what_was_sent_before_a_graceful_close_arrives,
            a_flood_of_small_frames_keeps_its_order,
            many_connections_do_not_mix,
            connections_above_the_limit_are_refused,
            a_refused_connection_is_an_event_that_names_the_peer,
            closing_a_connection_that_is_not_up_yet_is_allowed,
            calls_for_an_id_that_is_gone_are_ignored,
            a_wake_before_the_wait_is_not_lost,
            a_wait_ends_after_its_timeout,
            dropping_with_everything_pending_is_quick_and_complete,
            a_second_receive_is_our_own_mistake,
        ]);
    };
}

/// The stories with peers of which only bytes are known.
macro_rules! peers {
    ($module:ident, $maker:expr) => {
        peers!($module, $maker, also []);
    };
    ($module:ident, $maker:expr, also [$($more:ident),*]) => {
        mod $module {
            use super::*;

            peers!($maker, [
                $($more,)*
                g16_half_a_frame_and_a_fin_is_one_end_with_the_half_inside,
                g16_a_reset_of_the_peer_is_one_error_that_names_it,
                k07_a_reset_of_ours_discards_what_the_peer_has_not_got,
                a_frame_of_many_quanta_reaches_a_slow_peer_whole,
                a_peer_that_reads_single_bytes_gets_them_all,
                a_peers_flood_is_taken_in_order_at_our_pace,
            ]);
        }
    };
    ($maker:expr, [$($story:ident),* $(,)?]) => {
        $(
            #[test]
            fn $story() {
                peers::$story(&mut $maker);
            }
        )*
    };
}

/// A seed that differs from run to run; stories print it.
fn seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    now.as_nanos() as u64 | 1
}

suite!(
    std_sockets,
    Std,
    also[a_wake_from_another_thread_ends_the_wait_soon]
);
suite!(
    raw_ring,
    Uring,
    also[a_wake_from_another_thread_ends_the_wait_soon]
);
suite!(
    tokio_uring,
    TokioUring,
    also[a_wake_from_another_thread_ends_the_wait_soon]
);
suite!(simulated, Sim::new());
peers!(
    std_sockets_and_peers,
    Std,
    also[sockets_are_set_for_frames_and_closed_on_exec]
);
peers!(
    raw_ring_and_peers,
    Uring,
    also[sockets_are_set_for_frames_and_closed_on_exec]
);
peers!(
    tokio_uring_and_peers,
    TokioUring,
    also[sockets_are_set_for_frames_and_closed_on_exec]
);
peers!(simulated_and_peers, Sim::new());
