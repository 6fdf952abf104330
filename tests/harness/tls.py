"""TLS in front of a server that has none: a private authority, and a line that it vouches for."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

LOCAL = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def make_authority(folder: Path) -> tuple[Path, Path, Path]:
    """The certificate of an authority that nobody else knows; one that it has signed, and the key to that."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    authority, authority_key = folder / "ca.pem", folder / "ca-key.pem"
    certificate, key, request = folder / "cert.pem", folder / "key.pem", folder / "request.pem"
    names = folder / "names"
    names.write_text(LOCAL)
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes")
    _run(*new, "-x509", "-days", "2", "-subj", "/CN=private authority",
         "-out", authority, "-keyout", authority_key)  # fmt: skip
    _run(*new, "-subj", "/CN=localhost", "-out", request, "-keyout", key)
    _run("openssl", "x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key,
         "-CAcreateserial", "-days", "2", "-extfile", names, "-out", certificate)  # fmt: skip
    return authority, certificate, key


@contextmanager
def tls_line(host: str, port: int, certificate: Path, key: Path) -> Iterator[int]:
    """A port of this machine where TLS is taken off on the way to the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    opened: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                opened.append(link)
                with suppress(ssl.SSLError):
                    opened.append(context.wrap_socket(link, server_side=True))
                    opened.append(socket.create_connection((host, port)))
                    for ends in (opened[-2:], opened[:-3:-1]):
                        threading.Thread(target=_pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for one in opened:
        one.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
