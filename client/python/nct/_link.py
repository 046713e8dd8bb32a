"""The DEALER of a session: one connection and its monitor. What makes a client safe with nctd is set here: no routing id,
ZMQ_IMMEDIATE, no ZMTP heartbeats, finite linger, TCP keepalive."""

import zmq
from zmq.utils.monitor import recv_monitor_message

from ._keys import curve_of

DISCONNECTED = zmq.EVENT_DISCONNECTED
SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
KEY, PROTOCOL, NO_DETAIL = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
                            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
MECHANISM = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
HANG_UPS = 6            # in a row: a daemon that cannot read what it hears says nothing


def set_options(socket, keys):
    socket.linger = 0
    socket.ipv6 = True
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 30
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 10, 3
    socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1000
    socket.maxmsgsize = 1 << 30
    if keys:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (k.encode() for k in keys)


def check_endpoint(endpoint):
    if not isinstance(endpoint, str) or not endpoint.startswith(("tcp://", "ipc://")):
        raise ValueError(f"endpoint {endpoint!r} is not tcp://HOST:PORT or ipc://PATH")


class Link:
    def __init__(self, endpoint, keys=None):
        check_endpoint(endpoint)
        self.endpoint, self.keys = endpoint, curve_of(keys)
        self.context = zmq.Context()
        self.socket = self.monitor = None
        self.renewals = 0
        self.renew()

    def renew(self):
        """A new connection in place of the present one."""
        self._drop(0)
        self.connected = self.cut = False
        self.refused, self.hang_ups = None, 0
        self.socket = self.context.socket(zmq.DEALER)
        set_options(self.socket, self.keys)
        self.socket.immediate = 1
        self.renewals += 1
        name = f"inproc://nct-monitor-{self.renewals}"
        self.socket.monitor(name, DISCONNECTED | SUCCEEDED | KEY | PROTOCOL | NO_DETAIL)
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
            message = recv_monitor_message(self.monitor)
            event = message["event"]
            if event == SUCCEEDED:
                self.connected, self.refused, self.hang_ups = True, None, 0
            elif event == DISCONNECTED:
                self.cut = self.connected
            else:
                self.refused = self._refusal(event, message["value"]) or self.refused

    def _refusal(self, event, value):
        """Why a handshake failed: (error name, sentence), or None: it may succeed next time."""
        at = self.endpoint
        if event == KEY:
            return "EACCES", (f"{at} does not admit the public key {self.keys[1]}: its auth.client_keys must list it, then "
                              "reload it")
        if event == NO_DETAIL:
            self.hang_ups += 1
            if self.hang_ups < HANG_UPS:
                return None
            return "EACCES", (f"{at} hangs up in the CURVE handshake: is {self.keys[0]} its public key, and does it use keys?" if self.keys else
                              f"{at} hangs up in the handshake: it asks for CURVE keys (curve=...), or is no NCT daemon")
        if value == MECHANISM and self.keys:
            return "EACCES", f"keys were given, and {at} takes none: its auth.secret_key_file is not set"
        if value == MECHANISM:
            return "EACCES", f"{at} asks for CURVE keys and none were given: curve=(its public key, your .key_secret file)"
        return "EPROTO", f"no NCT daemon listens at {at}"

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
