"""The pin file: what a person may write, and what is said about mistakes."""

from pathlib import Path

import pytest

from mindspeed_overlay.data import default_licenses
from mindspeed_overlay.errors import SourceError
from mindspeed_overlay.pins import Pins, Wheel, load_pins, parse_pins
from mindspeed_overlay.tree import sha256

PIN_FILE = Path(__file__).parents[2] / "megatron_pin.txt"
HEX = "0123456789abcdef" * 4
GOOD = f"""\
format = 1

[[release]]
tag = "core_v0.1.0"
commit = "{HEX[:40]}"
version = "0.1.0"
default = true
python = ">=3.10"
source-digest = "{HEX}"
tree-digest = "{HEX}"
license = "{HEX}"

[[release.other-digest]]
source = "pypi"
digest = "{HEX[::-1]}"
reason = "one version file differs"

[release.wheels]
"megatron_core-0.1.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl" = "{HEX}"

[[release]]
tag = "core_v0.2.0"
version = "0.2.0"
python = ">=3.10,<4"
source-digest = "{HEX}"
yanked = "broken"

[release.wheels]
"megatron_core-0.2.0-py3-none-any.whl" = "{HEX[::-1]}"
"""


def read_errors(text: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        parse_pins(text, where="pins")
    return caught.value


@pytest.fixture(scope="module")
def shipped() -> Pins:
    return load_pins(PIN_FILE)


def test_the_shipped_pin_holds_the_seven_releases_in_order(shipped: Pins) -> None:
    versions = [release.version for release in shipped.releases]
    assert versions == ["0.12.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.0"]
    assert shipped.default.tag == "core_v0.16.1"


def test_the_shipped_pin_has_wheels_for_both_architectures_of_each_python(shipped: Pins) -> None:
    for release in shipped.releases:
        targets = {tuple(tag.split("-")[0::2]) for wheel in release.wheels for tag in wheel.tags}
        pythons = {python for python, _ in targets}
        for machine in ("x86_64", "aarch64"):
            assert {(python, f"manylinux_2_28_{machine}") for python in pythons} <= targets


def test_the_licence_of_every_shipped_pin_is_shipped_byte_for_byte(shipped: Pins) -> None:
    for release in shipped.releases:
        assert (
            sha256((default_licenses() / f"{release.license}.txt").read_bytes()) == release.license
        )
    names = {path.stem for path in default_licenses().glob("*.txt")}
    assert names == {release.license for release in shipped.releases}


def test_training_belongs_to_the_distribution_from_0_17(shipped: Pins) -> None:
    assert [release.training for release in shipped.releases] == [False] * 4 + [True] * 3


def test_the_commit_of_0_19_0_and_its_published_files_have_a_digest_each(shipped: Pins) -> None:
    release = shipped.get("0.19.0")
    assert release.digest_for("git") == release.source_digest != release.digest_for("pypi")
    assert release.digests == {release.source_digest, release.digest_for("pypi")}
    assert "package_info.py" in release.other_digests[0].reason


def test_a_release_is_found_by_tag_and_by_version() -> None:
    pins = parse_pins(GOOD)
    assert pins.get("core_v0.2.0") is pins.get("0.2.0") is pins.releases[1]
    assert pins.index("0.2.0") == 1


def test_an_unknown_release_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(SourceError, match=r"E301.*'0\.3\.0'.*core_v0\.1\.0, core_v0\.2\.0"):
        parse_pins(GOOD).get("0.3.0")


def test_between_includes_both_ends(shipped: Pins) -> None:
    tags = [release.version for release in shipped.between("core_v0.14.0", "core_v0.16.1")]
    assert tags == ["0.14.0", "0.15.3", "0.16.1"]
    assert shipped.between() == shipped.releases
    assert shipped.between("core_v0.18.2") == shipped.releases[5:]


def test_a_wheel_lists_its_tags_one_by_one() -> None:
    name = "megatron_core-1-cp311.cp312-abi3-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl"
    assert Wheel(name, HEX).tags == (
        "cp311-abi3-manylinux_2_24_x86_64",
        "cp311-abi3-manylinux_2_28_x86_64",
        "cp312-abi3-manylinux_2_24_x86_64",
        "cp312-abi3-manylinux_2_28_x86_64",
    )


def test_a_release_known_from_pypi_alone_has_neither_commit_nor_licence() -> None:
    release = parse_pins(GOOD).releases[1]
    assert (release.commit, release.tree_digest, release.license) == ("", "", "")
    assert release.yanked == "broken"


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "said"),
    [
        ("format = 1", "format = 2", "E303", 1, "format must be 1"),
        ("format = 1", "format = 1\nextra = 1", "E303", 2, "unknown key 'extra'"),
        ('tag = "core_v0.1.0"', "", "E303", 3, "tag is missing"),
        ('tag = "core_v0.1.0"', 'tag = "../x"', "E303", 4, "tag '../x' is not valid"),
        (HEX[:40], HEX[:39], "E303", 5, "commit"),
        ('version = "0.1.0"', 'version = "one"', "E303", 6, "version 'one'"),
        ("default = true", 'default = "yes"', "E303", 7, "default must be true or false"),
        ("default = true", "default = false", "E304", 1, "exactly one release"),
        ('python = ">=3.10"', 'python = "3.10 or so"', "E303", 8, "python"),
        (f'source-digest = "{HEX}"', f'source-digest = "{HEX.upper()}"', "E303", 9, "source-dig"),
        (f'tree-digest = "{HEX}"', "", "E303", 3, "tree-digest is missing"),
        (f'license = "{HEX}"', 'licence = "x"', "E303", 11, "unknown key 'licence'"),
        ('source = "pypi"', 'source = "ftp"', "E303", 13, "other-digest needs source"),
        ('reason = "one version file differs"', 'reason = " "', "E303", 13, "reason"),
        ("-0.1.0-cp311", "-0.1.1-cp311", "E303", 19, "is no wheel of megatron-core 0.1.0"),
        (f'64.whl" = "{HEX}"', '64.whl" = "00"', "E303", 19, "needs a SHA-256"),
        ('tag = "core_v0.2.0"', 'tag = "core_v0.1.0"', "E304", 22, "pinned twice"),
        ("0.2.0-py3", "0.2.0-1-py3", "E303", 29, "is no wheel"),
        (HEX[::-1] + '"\n', HEX + '"\n', "E304", 29, "another release's wheel"),
        ('yanked = "broken"', 'yanked = "broken"\ndefault = true', "E304", 1, "exactly one"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    old: str, new: str, code: str, line: int, said: str
) -> None:
    head, found, tail = GOOD.rpartition(old) if "another" in said else GOOD.partition(old)
    assert found
    problems = read_errors(head + new + tail).problems
    assert any(p.code == code and said in p.message for p in problems), problems
    if said not in ("exactly one", "exactly one release"):
        assert [p.line for p in problems if said in p.message] == [line]


def test_a_yanked_release_cannot_be_the_default() -> None:
    text = GOOD.replace("default = true\n", "").replace("yanked", "default = true\nyanked")
    assert "yanked release cannot be the default" in str(read_errors(text))


def test_all_mistakes_are_reported_together() -> None:
    text = GOOD.replace('version = "0.1.0"', 'version = "x"').replace('"broken"', "7")
    assert len(read_errors(text).problems) >= 2


def test_toml_that_does_not_parse_names_its_line() -> None:
    problem = read_errors(GOOD.replace('"0.1.0"', "0.1.0", 1)).problems[0]
    assert (problem.code, problem.line) == ("E302", 6)


@pytest.mark.parametrize("text", ["", "format = 1\n", "format = 1\nrelease = 3\n"])
def test_a_pin_without_releases_is_refused(text: str) -> None:
    assert "no [[release]] stanza" in str(read_errors(text))


def test_a_file_that_is_missing_or_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="E302"):
        load_pins(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"# \xe9\nformat = 1\n")
    with pytest.raises(SourceError, match="E302"):
        load_pins(tmp_path / "latin")
