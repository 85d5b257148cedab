"""A server of https on this machine, with a certificate of its own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dlx.node.home import remote


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], certificate: Path, ip: str = "127.0.0.1") -> Iterator[str]:
    """Its URL while this lasts; `certificate` is written, with the key."""
    server = ThreadingHTTPServer((ip, 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certify(certificate, ip))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://{ip}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def trust(monkeypatch: pytest.MonkeyPatch, certificate: Path, *ips: str) -> None:
    """From now on this process believes the certificate, and takes these addresses for public ones."""

    def taken_for_public(text: str) -> SimpleNamespace:
        return SimpleNamespace(is_global=text in ips or ip_address(text).is_global)

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(remote, "ip_address", taken_for_public)


def certify(path: Path, ip: str = "127.0.0.1") -> Path:
    """A certificate of an IP address, by itself, with its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(ip))]), True)
    signed = made.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(signed.public_bytes(pem) + key.private_bytes(pem, form, plain))
    return path
