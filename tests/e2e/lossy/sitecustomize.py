"""A network that loses half of all datagrams and sometimes breaks a connection, for every Python with this folder in
PYTHONPATH."""

import random
import socket

_sendto, _send = socket.socket.sendto, socket.socket.send


def _lossy_sendto(self, data, *rest):
    return len(data) if random.random() < 0.5 else _sendto(self, data, *rest)


def _lossy_send(self, data, *rest):
    if self.family in (socket.AF_INET, socket.AF_INET6) and random.random() < 0.02:
        raise ConnectionResetError("lost")
    return _send(self, data, *rest)


socket.socket.sendto, socket.socket.send = _lossy_sendto, _lossy_send
