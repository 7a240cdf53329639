"""Certificates for tests of TLS, made when they are needed."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from muxcluster.core.inputs.tls_files import TlsFiles


def make_certificate(
    folder: Path, name: str = "localhost", passphrase: bytes | None = None
) -> TlsFiles:
    """A certificate of `name` and 127.0.0.1, signed by itself, and its key, in `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    places = [x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
    Path(files.cert).write_bytes(made.public_bytes(Encoding.PEM))
    lock = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    Path(files.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    return files


def trusting(files: TlsFiles) -> ssl.SSLContext:
    """A client's context that trusts this certificate alone."""
    return ssl.create_default_context(cafile=files.cert)
