"""Where wheels come from, as an in-toto statement with SLSA provenance, signed if a key is given.

The statement holds no time and no machine: the same build gives the same statement. A signed one is
a DSSE envelope (the payload and what signs it in one JSON file), the form that SLSA verifiers read.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspeed_overlay.cluster.sign import key_id, sign_bytes, verify_bytes
from mindspeed_overlay.errors import PackagingError, Problem
from mindspeed_overlay.lock import Lock
from mindspeed_overlay.staging import write_if_changed

STATEMENT_NAME = "build.provenance.json"
ENVELOPE_NAME = "build.provenance.dsse.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUILD_TYPE = "urn:mindspeed-overlay:build:v1"
_REPOSITORY = "git+https://github.com/NVIDIA/Megatron-LM"


def make_statement(lock: Lock) -> dict[str, Any]:
    """The in-toto v1 statement with SLSA v1 provenance over the wheels of a lock."""
    release = lock.release
    upstream = {entry.upstream: entry.upstream_sha256 for entry in lock.wheels}
    materials = [
        {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(upstream.items())
    ]
    if release["commit"]:
        uri = f"{_REPOSITORY}@{release['tag']}"
        materials.append({"uri": uri, "digest": {"gitCommit": release["commit"]}})
    materials += [
        {"name": f"overlay:{row['id']}", "digest": {"sha256": row["digest"]}}
        for row in lock.overlays
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": entry.wheel, "digest": {"sha256": entry.wheel_sha256}} for entry in lock.wheels
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "release": release["tag"],
                    "source": lock.source,
                    "tree": lock.tree,
                    "overlays": [row["id"] for row in lock.overlays],
                    "targets": [
                        {"python": entry.python, "platform": entry.platform}
                        for entry in lock.wheels
                    ],
                },
                "internalParameters": {
                    "tool": lock.tool,
                    "wheelFormat": lock.wheel_format,
                    "overlaySetRevision": lock.revision,
                    "buildDigest": lock.digest,
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": "urn:mindspeed-overlay:builder",
                    "version": {"mindspeed-overlay": lock.tool},
                }
            },
        },
    }


def write_statement(statement: Mapping[str, Any], out: Path, *, key: Path | None = None) -> Path:
    """Write the statement into `out`, as it is or, with a private key, in a signed envelope.

    Returns:
        The file.

    Raises:
        PackagingError: E703, the folder cannot be written.
    """
    payload = _canonical(statement)
    target, data = out / STATEMENT_NAME, payload
    if key:
        target, data = out / ENVELOPE_NAME, _canonical(sign_statement(payload, key))
    try:
        write_if_changed(target, data)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror}"
        raise PackagingError(Problem(code="E703", message=message, path=str(target))) from error
    return target


def sign_statement(payload: bytes, key: Path) -> dict[str, Any]:
    """A DSSE envelope around `payload`, signed with a private key file."""
    signature = sign_bytes(_pae(payload), key)
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id(key), "sig": base64.b64encode(signature).decode()}],
    }


def check_envelope(envelope: Path, *, key: Path, name: str, sha256: str) -> list[Problem]:
    """Is a wheel what somebody with the key signed for?

    Args:
        envelope: the DSSE file.
        key: the public key file.
        name: the wheel's file name.
        sha256: the wheel's hash.

    Returns:
        E914 where the envelope is missing or its signature wrong, E915 where it is sound and names
        another wheel.
    """
    try:
        table = json.loads(envelope.read_bytes())
        payload = base64.b64decode(table["payload"], validate=True)
        signatures = [base64.b64decode(s["sig"], validate=True) for s in table["signatures"]]
        good = table["payloadType"] == PAYLOAD_TYPE
        subjects = json.loads(payload)["subject"]
        signed = {row["name"]: row["digest"]["sha256"] for row in subjects}
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"cannot read the signed statement {envelope}: {error}"
        return [Problem(code="E914", path=str(envelope), message=message)]
    if not (good and any(verify_bytes(_pae(payload), s, key) for s in signatures)):
        message = f"{envelope}: no signature of the key {key} is on it"
        return [Problem(code="E914", path=str(envelope), message=message)]
    if signed.get(name) != sha256:
        message = f"{name} is not the wheel that {envelope} was signed for"
        return [Problem(code="E915", path=name, message=message)]
    return []


def _pae(payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of the DSSE specification."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _canonical(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
