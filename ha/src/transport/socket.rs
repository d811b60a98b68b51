//! Socket options and errors shared by the implementations that talk TCP.
//!
//! Every socket made here is close-on-exec, sends without delay, and gives up on a silent peer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::{Close, CloseReason, TransportConfig};

/// Probes sent to a silent peer before the connection ends.
const KEEPALIVE_RETRIES: u32 = 3;

/// How long a listener rests after the process or the host ran out of descriptors or memory.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) fn listener(
    addr: SocketAddr,
    config: &TransportConfig,
) -> io::Result<(Socket, SocketAddr)> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(config.backlog)?;
        let bound = inet(&socket.local_addr()?)?;
        Ok((socket, bound))
    };
    bind().map_err(|error| in_context(&error, "listen on", addr))
}

/// A socket to connect with.
pub(super) fn outgoing(addr: SocketAddr, config: &TransportConfig) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    set_options(&socket, config)?;
    Ok(socket)
}

/// Options of accepted and connecting sockets.
pub(super) fn set_options(socket: &Socket, config: &TransportConfig) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    let interval = (config.keepalive / KEEPALIVE_RETRIES).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new()
        .with_time(config.keepalive.max(Duration::from_secs(1)))
        .with_interval(interval)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Whether the kernel connected the socket to itself, which it may do when nobody listens on a
/// port of its own range for outgoing connections.
pub(super) fn is_self_connected(socket: &Socket) -> bool {
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(local), Ok(peer)) => local.as_socket() == peer.as_socket(),
        _ => false,
    }
}

/// Closes; what the kernel has taken is delivered or, for a reset, discarded.
pub(super) fn close(socket: Socket, how: Close) {
    if how == Close::Reset {
        // Fails only for a socket that is not connected, which has nothing to discard.
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
    drop(socket);
}

pub(super) fn inet(addr: &SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel gave an address that is not inet",
        )
    })
}

/// Whether accepting again makes sense at once: the error was about that one peer.
pub(super) fn is_about_one_peer(error: &io::Error) -> bool {
    use rustix::io::Errno;
    // accept(2): errors already pending on the new socket are passed on.
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::TIMEDOUT
        )
    )
}

/// Same kind, with the operation and the peer in the text.
pub(super) fn in_context(error: &io::Error, operation: &str, peer: SocketAddr) -> io::Error {
    io::Error::new(error.kind(), format!("{operation} {peer}: {error}"))
}

pub(super) fn failed(error: &io::Error, operation: &str, peer: SocketAddr) -> CloseReason {
    CloseReason::Failed(in_context(error, operation, peer))
}

pub(super) fn connected_to_itself(peer: SocketAddr) -> CloseReason {
    CloseReason::Failed(io::Error::new(
        io::ErrorKind::ConnectionRefused,
        format!("connect to {peer}: nobody listens there (the kernel connected it to itself)"),
    ))
}

pub(super) fn too_many_connections(addr: SocketAddr, limit: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!("connect to {addr}: {limit} connections are open (max_connections)"),
    )
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn g17_an_errno_keeps_its_kind_and_names_the_peer() {
        let table = [
            (Errno::CONNRESET, io::ErrorKind::ConnectionReset),
            (Errno::CONNREFUSED, io::ErrorKind::ConnectionRefused),
            (Errno::PIPE, io::ErrorKind::BrokenPipe),
            (Errno::TIMEDOUT, io::ErrorKind::TimedOut),
            (Errno::HOSTUNREACH, io::ErrorKind::HostUnreachable),
            (Errno::NETUNREACH, io::ErrorKind::NetworkUnreachable),
        ];
        let peer: SocketAddr = "127.0.0.9:10912".parse().unwrap();
        for (errno, kind) in table {
            let error = in_context(&errno.into(), "send to", peer);
            assert_eq!(error.kind(), kind);
            assert!(
                error.to_string().starts_with("send to 127.0.0.9:10912: "),
                "{error}"
            );
        }
    }

    #[test]
    fn running_out_of_descriptors_is_not_about_one_peer() {
        assert!(is_about_one_peer(&Errno::CONNABORTED.into()));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(!is_about_one_peer(&errno.into()));
        }
    }
}
