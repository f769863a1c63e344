"""Ed25519 signatures with keys in PEM files, by the `cryptography` library.

Keys are the user's: `openssl genpkey -algorithm ed25519` makes one. The library is an extra
(`pip install 'mindspeed-overlay[sign]'`) and is imported only where a key is given.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_overlay.errors import MissingError, Problem, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


def sign_bytes(data: bytes, key: Path) -> bytes:
    """The signature, 64 bytes.

    Raises:
        MissingError: E811, the library is not installed.
        UsageError: E212, the file is no such private key.
    """
    return _load_private(key).sign(data)


def verify_bytes(data: bytes, signature: bytes, key: Path) -> bool:
    """Whether the owner of a public key signed these bytes; raises as `sign_bytes` does."""
    from cryptography.exceptions import InvalidSignature

    public = _load_public(key)
    try:
        public.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def key_id(key: Path) -> str:
    """A name of the key pair: the hash of its public half, from either file."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = b"PRIVATE KEY" in key.read_bytes()
    public = _load_private(key).public_key() if private else _load_public(key)
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _load_private(key: Path) -> "Ed25519PrivateKey":
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _refuse(key, "private", str(error)) from error
    if not isinstance(found, Ed25519PrivateKey):
        raise _refuse(key, "private", f"it holds a {type(found).__name__}")
    return found


def _load_public(key: Path) -> "Ed25519PublicKey":
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        found = load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise _refuse(key, "public", str(error)) from error
    if not isinstance(found, Ed25519PublicKey):
        raise _refuse(key, "public", f"it holds a {type(found).__name__}")
    return found


def _refuse(key: Path, half: str, why: str) -> UsageError:
    message = f"{key} is no Ed25519 {half} key in PEM form without a password: {why}"
    hint = "`openssl genpkey -algorithm ed25519 -out key.pem`; `openssl pkey -in key.pem -pubout`"
    return UsageError(Problem(code="E212", path=str(key), message=message, hint=hint))


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        hint = "pip install 'mindspeed-overlay[sign]'"
        message = "signatures need the package `cryptography`, which is not installed"
        raise MissingError(Problem(code="E811", message=message, hint=hint)) from error
