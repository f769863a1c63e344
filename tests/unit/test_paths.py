"""Which paths are refused, and which odd ones are not."""

import pytest

from mindspeed_overlay.paths import explain_unsafe_path

UNSAFE = [
    "",
    "/a",
    "//a",
    "a/",
    "./a",
    "a/./b",
    "../a",
    "a/..",
    "a//b",
    "a\\b",
    "..\\a",
    "C:/a",
    "a:stream",
    "a\nb",
    "a\x00b",
    "a\x7fb",
    ".git",
    ".git/config",
    "a/.git/hooks/x",
    ".GIT/x",
    ".Git/x",
    ".git./x",
    ".git /x",
    ".git . ./x",
    ".git::$INDEX_ALLOCATION/x",
    "git~1/x",
    "GIT~2/x",
    ".g\u200cit/x",
    ".gi\u2060t/x",
    "\ufeff.git/x",
]
SAFE = [
    "a",
    "a/b.py",
    ".gitignore",
    ".github/x.yml",
    "git/x",
    "x.git/y",
    "a b/c",
    "...",
    "naïve.py",
]


@pytest.mark.parametrize("path", UNSAFE)
def test_an_unsafe_path_is_explained(path: str) -> None:
    assert explain_unsafe_path(path)


@pytest.mark.parametrize("path", SAFE)
def test_an_odd_path_is_safe(path: str) -> None:
    assert explain_unsafe_path(path) == ""
