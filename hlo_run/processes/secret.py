"""The secret of a run that several processes share, and how one process proves to another that it knows it.

Both sides send a random number. Each also sends the HMAC of its part in the talk, of both numbers and of what it says about
itself. The secret itself is never sent, and no proof serves twice.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hlo_run.cache import own_directory
from hlo_run.errors import UsageError
from hlo_run.whole_files import write_problem

VARIABLE = "HLO_RUN_SECRET"
NONCE_BYTES = 32
_KEY_FILE = "processes.key"
_KEY_BYTES = 32
# Whoever has seen a proof can try secrets on it, so a short one can be guessed.
_LEAST_BYTES = 16
_MOST_BYTES = 1 << 16
_HINT = f"give every process the same --secret_file=FILE or {VARIABLE}"


def job_secret(path: str, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret in the file `path`, else in HLO_RUN_SECRET, else the user's own key, which is made at its first use.

    All processes of one user on machines with the same home directory have the same key. Raises UsageError if a secret cannot be
    read, is too short, or is in a file that other users can read.
    """
    if path:
        return _checked(_read(Path(path), f"--secret_file={path}"), f"--secret_file={path}")
    if VARIABLE in environment:
        return _checked(environment[VARIABLE].strip().encode(errors="surrogateescape"), f"the environment variable {VARIABLE}")
    return _own_key()


def nonce() -> bytes:
    """Return a random number, which is never sent again."""
    return os.urandom(NONCE_BYTES)


def proof(secret: bytes, part: str, nonces: tuple[bytes, bytes], said: bytes = b"") -> bytes:
    """Return the proof of the side that has this `part` in the talk, for the numbers of caller and listener, and what it said."""
    parts = (part.encode(), *nonces, said)
    return hmac.digest(secret, b"".join(len(each).to_bytes(8, "little") + each for each in parts), "sha256")


def is_proof(given: bytes, secret: bytes, part: str, nonces: tuple[bytes, bytes], said: bytes = b"") -> bool:
    """True if `given` is the proof of the other side. Takes the same time whatever is wrong with it."""
    return hmac.compare_digest(given, proof(secret, part, nonces, said))


def _checked(secret: bytes, what: str) -> bytes:
    if len(secret) < _LEAST_BYTES:
        raise UsageError(f"{what} has {len(secret)} bytes: a secret needs {_LEAST_BYTES}", hint="openssl rand -hex 32 makes one")
    return secret


def _read(file: Path, what: str) -> bytes:
    """Return the contents of a file that this user alone can read."""
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if hasattr(os, "geteuid") and status.st_uid == os.geteuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"{what}: other users may read the secret", hint=f"chmod 600 '{file}'")
            return stream.read(_MOST_BYTES).strip()
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {write_problem(error)}", hint=_HINT) from None


def _own_key() -> bytes:
    """Return the user's own key. Of several processes that make it at the same time, one does, and all read what it wrote."""
    folder = own_directory()
    if folder is None:
        raise UsageError("the processes of a run need a secret, and there is no directory for the user's own key", hint=_HINT)
    file = folder / _KEY_FILE
    if not file.exists():
        part = folder / f".{_KEY_FILE}.{os.urandom(8).hex()}"
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(os.urandom(_KEY_BYTES).hex().encode())
            with contextlib.suppress(FileExistsError):
                os.link(part, file)
        except OSError as error:
            raise UsageError(f"'{file}', the user's own key, cannot be written: {write_problem(error)}", hint=_HINT) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    return _checked(_read(file, f"'{file}', the user's own key,"), f"'{file}'")
