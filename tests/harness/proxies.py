"""A line between a client and a server that a test can cut, block and stall."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from tests.harness.servers import PORTS


class Proxy:
    """Forwards TCP connections to the server of a URL, from a thread each way.

    Attributes:
        url: the server's URL, by way of the proxy.
        heard: how often clients have connected or said something so far.
    """

    heard = 0

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        user, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}"))

    @property
    def connections(self) -> int:
        """How many there are at the moment."""
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> None:
        """Resets every connection. New ones are taken."""
        with self._lock:
            lines, self._open = self._open, set()
        for line in lines:
            with suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
            line.close()

    def refuse(self) -> None:
        """Resets every connection, and refuses new ones until ``restore``."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def stall(self) -> None:
        """A black hole: connections stay, new ones are taken, but nothing gets through until ``restore``."""
        self._flowing.clear()

    def restore(self) -> None:
        """Lets through again, first of all what was held up."""
        self._flowing.set()
        if self._listener.fileno() < 0:
            self._listener = self._listen(self._port)

    def close(self) -> None:
        self.refuse()
        self._flowing.set()

    def _listen(self, port: int) -> socket.socket:
        while True:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port or random.choice(PORTS)))
                listener.listen(128)
            except OSError:
                listener.close()
                if port:
                    raise
            else:
                self._port = listener.getsockname()[1]
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
                return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.heard += 1
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.heard += source.getsockname()[1] == self._port
                self._flowing.wait()
                sink.sendall(data)
        with self._lock:
            cut = source not in self._open
            self._open -= {source, sink}
        if cut:
            return
        for line in (source, sink):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
