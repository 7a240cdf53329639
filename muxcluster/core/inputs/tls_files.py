"""The certificate and the key of a TLS server, as PEM files."""

import os
import ssl
from dataclasses import dataclass

from muxcluster.core.errors import ConfigError

# Inode, modification time in ns and bytes of both files; None for a missing one
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Absolute paths."""

    cert: str  # the server's certificate, then those between it and its authority
    key: str  # its private key, without a passphrase

    def context(self) -> ssl.SSLContext:
        """Return the context of a server with what the files have now: TLS 1.2 or newer, HTTP/1.1.

        Raises ConfigError, naming the file, if they cannot be read or do not belong together.
        """
        for file in (self.cert, self.key):
            _check_readable(file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(self.key, "", f"is not the key of {self.cert}") from error
            message = f"it and {self.key} are no certificate and key in PEM: {error.reason}"
            raise ConfigError(self.cert, "", message) from error
        except OSError as error:  # it has gone since
            message = f"it or {self.key} cannot be read: {error.strerror}"
            raise ConfigError(self.cert, "", message) from error
        except ValueError as error:
            raise ConfigError(self.key, "", str(error)) from error
        return context

    def stamp(self) -> Stamp:
        """Return what changes when a file is replaced or written."""
        return tuple(_stamp(file) for file in (self.cert, self.key))


def _check_readable(file: str) -> None:
    try:
        with open(file, "rb"):
            return
    except OSError as error:
        raise ConfigError(file, "", f"cannot be read: {error.strerror}") from error


def _no_passphrase() -> str:
    # OpenSSL would ask for it on the terminal
    raise ValueError("has a passphrase, which nobody could type for a server: remove it")


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
