"""The DEALER of a session: one connection and its monitor. What makes a client safe with nctd is set here: no routing id,
ZMQ_IMMEDIATE, no ZMTP heartbeats, finite linger, TCP keepalive."""

import zmq
from zmq.utils.monitor import recv_monitor_message

DISCONNECTED = zmq.EVENT_DISCONNECTED
SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
REFUSED = {zmq.EVENT_HANDSHAKE_FAILED_AUTH: "EACCES", zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "EPROTO"}


def set_options(socket, keys):
    socket.linger = 0
    socket.ipv6 = True
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 30
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 10, 3
    socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1000
    socket.maxmsgsize = 1 << 30
    if keys:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (
            k.encode() if isinstance(k, str) else k for k in keys)


def check_endpoint(endpoint):
    if not isinstance(endpoint, str) or not endpoint.startswith(("tcp://", "ipc://")):
        raise ValueError(f"endpoint {endpoint!r} is not tcp://HOST:PORT or ipc://PATH")


class Link:
    def __init__(self, endpoint, keys=None):
        check_endpoint(endpoint)
        if keys and len(keys) != 3:
            raise ValueError("curve is (server key, public key, secret key)")
        self.endpoint, self.keys = endpoint, keys
        self.context = zmq.Context()
        self.socket = self.monitor = None
        self.renewals = 0
        self.renew()

    def renew(self):
        """A new connection in place of the present one."""
        self._drop(0)
        self.connected = self.cut = False
        self.refused = None
        self.socket = self.context.socket(zmq.DEALER)
        set_options(self.socket, self.keys)
        self.socket.immediate = 1
        self.renewals += 1
        name = f"inproc://nct-monitor-{self.renewals}"
        self.socket.monitor(name, DISCONNECTED | SUCCEEDED | sum(REFUSED))
        self.monitor = self.context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.rcvhwm = 0  # libzmq's I/O thread waits at a full one, and nobody reads while the caller is elsewhere
        self.monitor.connect(name)
        try:
            self.socket.connect(self.endpoint)
        except zmq.ZMQError as e:
            self._drop(0)
            raise ValueError(f"endpoint {self.endpoint!r}: {e}") from None

    def _drop(self, linger_ms):
        if self.socket is None:
            return
        self.socket.monitor(None, 0)
        self.socket.close(linger=linger_ms)
        self.monitor.close()
        self.socket = self.monitor = None

    def close(self, linger_ms):
        self._drop(linger_ms)
        self.context.term()

    def news(self):
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == SUCCEEDED:
                self.connected, self.refused = True, None
            elif event == DISCONNECTED:
                self.cut = self.connected
            else:
                self.refused = REFUSED.get(event)

    def send(self, *parts):
        """False: there is no connection."""
        try:
            self.socket.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def recv(self):
        try:
            return self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def wait(self, seconds, writable):
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN | (zmq.POLLOUT if writable else 0))
        poller.register(self.monitor, zmq.POLLIN)
        poller.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999)))
