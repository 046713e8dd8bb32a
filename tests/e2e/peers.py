"""Clients as processes of their own, so that they can be stopped (SIGSTOP), killed and continued.

    peers.py ENDPOINT STREAM CHANNELS STEPS COUNT [slow]     sends COUNT frames, keeps the window, prints each answer
    peers.py sub ENDPOINT TOPIC                              subscribes and prints each result's seq
"""
import os
import signal
import socket
import struct
import subprocess
import sys

import numpy as np


def talk(endpoint, stream, channels, steps, count):
    import wire
    c = wire.Client(endpoint, timeout_s=60)
    print("hello", flush=True)
    x = np.ones((channels, steps), np.float32)
    sent = got = 0
    while got < count:
        while sent < count and sent - got < c.window:
            c.frame(stream, x)
            sent += 1
        answer = c.recv()
        if answer is None:
            print("silence", flush=True)
            return
        got += 1
        print(answer.h.status, flush=True)
    print("done", flush=True)


def listen(endpoint, topic):
    import zmq
    import wire
    s = zmq.Context().socket(zmq.SUB)
    s.linger = 0
    s.subscribe(topic.encode())
    s.connect(endpoint)
    print("hello", flush=True)
    while True:
        message = wire.unpack(s.recv_multipart())
        print(message.h.seq, flush=True)


def shake_hands(path, socket_type, identity=None):
    """A unix socket on which the peer takes us for that type of ZeroMQ socket: ZMTP by hand, for what libzmq does not let out."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.settimeout(10)
    s.sendall(b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
    got = b""
    while len(got) < 64:
        got += s.recv(4096)
    facts = {b"Socket-Type": socket_type} | ({} if identity is None else {b"Identity": identity})
    body = b"\x05READY" + b"".join(bytes([len(k)]) + k + struct.pack(">I", len(v)) + v for k, v in facts.items())
    s.sendall(b"\x04" + bytes([len(body)]) + body)
    return s


class Peer:
    def __init__(self, *args):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *map(str, args)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, cwd=os.path.dirname(os.path.abspath(__file__)))
        assert self.process.stdout.readline() == "hello\n", self.process.stderr.read()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def line(self):
        return self.process.stdout.readline().strip()


if __name__ == "__main__":
    if sys.argv[1] == "sub":
        listen(*sys.argv[2:4])
    else:
        talk(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
