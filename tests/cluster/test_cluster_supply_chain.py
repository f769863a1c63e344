"""SBOM, provenance and signatures, each checked by somebody else's code."""

import base64
import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from cluster.small_build import World

OTHER_KEY = "other"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two key pairs that openssl made."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("team", OTHER_KEY):
        make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", f"{folder}/{name}.pem"]
        subprocess.run(make, check=True, capture_output=True)
        tell = ["openssl", "pkey", "-in", f"{folder}/{name}.pem", "-pubout"]
        subprocess.run([*tell, "-out", f"{folder}/{name}.pub.pem"], check=True)
    return folder


@pytest.fixture(scope="module")
def signed(small_world: World, keys: Path) -> Path:
    """A signed build's wheel."""
    out = small_world.folder / "signed"
    return small_world.build(out, "--sign", keys / "team.pem")[0]


def test_the_sbom_is_valid_for_the_makers_of_the_format(signed: Path) -> None:
    with zipfile.ZipFile(signed) as archive:
        names = [n for n in archive.namelist() if n.endswith("mindspeed-overlay.cdx.json")]
        text = archive.read(names[0]).decode()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"library"', '"no such type"')) is not None


def test_the_wheel_carries_licence_and_modification_notice(signed: Path) -> None:
    with zipfile.ZipFile(signed) as archive:
        names = archive.namelist()
        notice = next(archive.read(n) for n in names if n.endswith("licenses/NOTICE"))
        assert any(n.endswith("licenses/LICENSE") for n in names)
        fixed = {(i.external_attr >> 16, i.date_time) for i in archive.infolist()}
    assert b"modified  megatron/core/transformer/mlp.py  (base/small)" in notice
    assert fixed == {(0o100644, (1980, 1, 1, 0, 0, 0))}


def test_the_statement_names_the_wheels_and_what_they_are_made_of(
    small_world: World, signed: Path
) -> None:
    envelope = json.loads(signed.with_name("build.provenance.dsse.json").read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
    assert subjects[signed.name] == hashlib.sha256(signed.read_bytes()).hexdigest()
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["overlays"] == ["base/small"]
    materials = {m.get("name"): m["digest"] for m in definition["resolvedDependencies"]}
    upstream = small_world.upstream.release.wheels[0]
    assert materials[upstream.filename] == {"sha256": upstream.sha256}
    assert "overlay:base/small" in materials
    assert statement["predicate"]["runDetails"]["builder"]["id"]


def test_openssl_accepts_the_signature_over_the_dsse_encoding(
    signed: Path, keys: Path, tmp_path: Path
) -> None:
    envelope = json.loads(signed.with_name("build.provenance.dsse.json").read_text())
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    (tmp_path / "data").write_bytes(encoded)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin"]
    command += ["-in", f"{tmp_path}/data", "-sigfile", f"{tmp_path}/sig", "-inkey"]
    for name, code in (("team", 0), (OTHER_KEY, 1)):
        done = subprocess.run(
            [*command, f"{keys}/{name}.pub.pem"], capture_output=True, check=False
        )
        assert done.returncode == code


def test_signing_the_same_build_again_gives_the_same_envelope(
    small_world: World, signed: Path, keys: Path, tmp_path: Path
) -> None:
    small_world.build(tmp_path / "again", "--sign", keys / "team.pem")
    name = "build.provenance.dsse.json"
    assert (tmp_path / "again" / name).read_bytes() == signed.with_name(name).read_bytes()


def test_verify_asks_the_key(small_world: World, signed: Path, keys: Path) -> None:
    done = small_world.call("verify", signed, "--key", keys / "team.pub.pem", "--json")
    assert json.loads(done.out)["authentic"]
    wrong = small_world.call("verify", signed, "--key", keys / "other.pub.pem", check=False)
    assert wrong.code == 9
    assert "E914" in wrong.err


def test_a_signed_statement_does_not_vouch_for_another_wheel(
    small_world: World, signed: Path, keys: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / signed.name
    with zipfile.ZipFile(signed) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    words = ("--key", keys / "team.pub.pem", "--provenance")
    envelope = signed.with_name("build.provenance.dsse.json")
    done = small_world.call("verify", wheel, *words, envelope, check=False)
    assert done.code == 9
    assert "E915" in done.err


def test_a_changed_statement_is_refused(
    small_world: World, signed: Path, keys: Path, tmp_path: Path
) -> None:
    envelope = json.loads(signed.with_name("build.provenance.dsse.json").read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b"base/small", b"base/smell")
    envelope["payload"] = base64.b64encode(payload).decode()
    (tmp_path / "forged.json").write_text(json.dumps(envelope))
    words = ("--key", keys / "team.pub.pem", "--provenance", tmp_path / "forged.json")
    done = small_world.call("verify", signed, *words, check=False)
    assert done.code == 9
    assert "E914" in done.err


def test_a_file_that_is_no_key_is_refused(small_world: World, signed: Path, keys: Path) -> None:
    for wrong in (keys / "team.pem", signed):
        done = small_world.call("verify", signed, "--key", wrong, check=False)
        assert done.code == 2
        assert "E212" in done.err
    out = small_world.folder / "unsigned"
    words = ("--python", "3.12", "--platform", "linux_aarch64", "--sign", keys / "team.pub.pem")
    done = small_world.call("build", "--out", out, *words, check=False)
    assert done.code == 2
    assert "E212" in done.err
    assert not out.exists()
