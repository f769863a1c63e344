"""Fingerprints: looks never count, and whatever Python could tell apart does."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_overlay.fingerprint import Fingerprint, fingerprint_symbols

PLAIN = b"""\
@wrap
def f(a, b=1):
    if a:
        g(a, "x")
    return a + b
"""


def fingerprint(source: str | bytes, name: str = "f") -> Fingerprint:
    data = source.encode() if isinstance(source, str) else source
    return fingerprint_symbols(data)[name]


@pytest.mark.parametrize(
    "looks",
    [
        '@wrap\ndef f(a, b=1):\n    """Why."""\n    if a:\n        g(a, "x")\n    return a + b\n',
        "@wrap\ndef f(\n  a,\n  b=1,\n):\n    if a:\n        g(\n a, 'x',\n )\n    return a + b\n",
        "@wrap\ndef f(a, b=1):  # c\n    # c\n    if a: g(a, 'x')\n    return (a\n        + b)\n",
        '@wrap\ndef f(a, b=1):\n  if (a): g(a, """x"""); pass\n  return \\\n    a + b\n',
        "@wrap\r\ndef f(a, b=1):\r\n    if a:\r\n        g(a, 'x' '')\r\n    return a + b\r\n",
        "if True:\n  @wrap\n  def f(a, b=1):\n    if a:\n      g(a, '\\x78')\n    return a + b\n",
    ],
    ids=["docstring", "wrapped", "comments", "one-line", "crlf", "indented"],
)
def test_looks_do_not_count(looks: str) -> None:
    assert fingerprint(looks) == fingerprint(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"def f(a, b=1)", b"def f(a, b=2)"),
        (b"def f(a, b=1)", b"def f(a, *, b=1)"),
        (b"def f(a, b=1)", b"def f(a: int, b=1)"),
        (b"def f(a, b=1)", b"def f(a, b=1) -> int"),
        (b"def f(a, b=1)", b"async def f(a, b=1)"),
        (b"@wrap", b"@wrap()"),
        (b"@wrap\n", b""),
    ],
)
def test_how_it_is_called_is_the_signature_and_nothing_else(old: bytes, new: bytes) -> None:
    before, after = fingerprint(PLAIN), fingerprint(PLAIN.replace(old, new))
    assert before.signature != after.signature
    assert before.body == after.body


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return a + b", "return a - b"),
        ("    return a + b", "        return a + b"),
        ("return a + b", "return a, b"),
        ('"x"', '"y"'),
        ('"x"', 'b"x"'),
        ('"x"', "x"),
        ('"x"', 'f"{x}"'),
        ("g(a,", "g(*a,"),
        ("g(a,", "g(k=a,"),
        ("if a:", "while a:"),
        ("if a:", "if not a:"),
    ],
)
def test_what_it_does_is_the_body_and_nothing_else(old: str, new: str) -> None:
    before, after = fingerprint(PLAIN), fingerprint(PLAIN.decode().replace(old, new))
    assert before.body != after.body
    assert before.signature == after.signature


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x[1:]", "x[:1]"),
        ("x[i]", "x[i,]"),
        ("f'{x}'", "f'{x=}'"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x}'", "'{x}'"),
        ("(x for x in y)", "[x for x in y]"),
        ("{x}", "{x: x}"),
        ("(x,)", "x"),
        ("a < b < c", "(a < b) < c"),
        ("-(a ** b)", "(-a) ** b"),
    ],
)
def test_expressions_that_differ_by_a_sign_are_told_apart(one: str, other: str) -> None:
    template = "def f():\n    return {}\n"
    assert fingerprint(template.format(one)) != fingerprint(template.format(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x[i, j]", "x[i, j,]"),
        ("a, b", "(a, b)"),
        ("'ab'", "'a' \"b\""),
        ("f'a{b}c'", "'a' f\"{b}\" 'c'"),
        ("f'(\\'{k}\\')'", "f\"('{k}')\""),
        ("f(x, y=1)", "f(x, y=1,)"),
        ("lambda x: x", "(lambda x: (x))"),
    ],
)
def test_expressions_that_mean_the_same_are_equal(one: str, other: str) -> None:
    template = "def f():\n    return {}\n"
    assert fingerprint(template.format(one)) == fingerprint(template.format(other))


def test_the_name_of_a_definition_is_not_its_own_but_its_owners() -> None:
    one, other = (
        b"class A:\n    def f(self):\n        pass\n",
        b"class A:\n    def g(self):\n        pass\n",
    )
    assert fingerprint(one, "A.f") == fingerprint(other, "A.g")
    assert fingerprint(one, "A").body != fingerprint(other, "A").body


def test_a_class_is_called_as_its_constructor_is() -> None:
    template = (
        "class A(B):\n    def __init__(self{}):\n        pass\n    def m(self{}):\n        pass\n"
    )
    plain = fingerprint(template.format("", ""), "A")
    assert fingerprint(template.format(", x", ""), "A").signature != plain.signature
    assert fingerprint(template.format("", ", x"), "A").signature == plain.signature
    assert (
        fingerprint(template.replace("(B)", "(C)").format("", ""), "A").signature != plain.signature
    )


def test_fields_are_the_signature_of_a_dataclass_and_of_no_other_class() -> None:
    for head, counts in (
        ("@dataclass\n", True),
        ("@dataclasses.dataclass(frozen=True)\n", True),
        ("", False),
    ):
        one = fingerprint(f"{head}class A:\n    x: int = 1\n", "A")
        other = fingerprint(f"{head}class A:\n    x: int = 1\n    y: int = 2\n", "A")
        assert (one.signature != other.signature) is counts
        assert one.body != other.body


def test_several_definitions_of_a_name_count_together_and_in_order() -> None:
    getter = "    @property\n    def x(self):\n        return 1\n"
    setter = "    @x.setter\n    def x(self, v):\n        self.v = v\n"
    both = fingerprint(f"class A:\n{getter}{setter}", "A.x")
    assert both != fingerprint(f"class A:\n{getter}", "A.x")
    assert both != fingerprint(f"class A:\n{setter}{getter}", "A.x")


def test_the_module_is_what_it_does_besides_defining_and_importing() -> None:
    plain = fingerprint("import a\nX = 1\ndef f():\n    pass\n", "<module>")
    assert plain == fingerprint("from b import (c)\nX = 1\nclass D:\n    y = 2\n", "<module>")
    assert plain != fingerprint("import a\nX = 2\ndef f():\n    pass\n", "<module>")


def test_a_nested_function_is_part_of_the_one_around_it() -> None:
    one = fingerprint_symbols(b"def f():\n    def g():\n        return 1\n    return g\n")
    other = fingerprint_symbols(b"def f():\n    def g():\n        return 2\n    return g\n")
    assert set(one) == {"f", "f.g", "<module>"}
    assert one["f"].body != other["f"].body
    assert one["f.g"].body != other["f.g"].body


def test_a_chain_too_deep_for_recursion_has_a_fingerprint() -> None:
    chain = " + ".join(["x"] * 5000)
    assert fingerprint(f"def f(x):\n    return {chain}\n") != fingerprint(
        "def f(x):\n    return x\n"
    )


NAMES = st.sampled_from(["a", "b", "c"])
ATOMS = NAMES | st.sampled_from(["1", "'s'", "2.5", "None"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} ** {})".format, inner, inner),
        st.builds("({}, {})".format, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{}({}, k={})".format, NAMES, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("{}[{}:]".format, NAMES, inner),
        st.builds("{}[:{}]".format, NAMES, inner),
        st.builds("(lambda a: {})".format, inner),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, EXPRESSIONS)
def test_fingerprints_agree_with_pythons_own_syntax_tree(one: str, other: str) -> None:
    same = ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    template = "def f():\n    return {}\n"
    assert (fingerprint(template.format(one)) == fingerprint(template.format(other))) is same


@given(EXPRESSIONS)
def test_printing_a_syntax_tree_anew_keeps_its_fingerprint(expression: str) -> None:
    source = f"def f():\n    return {expression}\n"
    assert fingerprint(ast.unparse(ast.parse(source))) == fingerprint(source)


SAMPLE = b"""\
import os

LIMIT = {'a': (1, 2), **os.environ}


@decorate(1)
async def f(a, /, b: int = 2, *args: str, c, **kw) -> "T":
    \"\"\"Doc.\"\"\"
    with open(a) as g, h:
        x[1:2, ...] = [y async for y in b if not y] or {*args}
    try:
        yield f"{a!r:>{b}} text" f"more"
    except (A, B) as e:
        raise C from e
    finally:
        del a, b
    return lambda q, *r: (q := r)


class K(Base[int], metaclass=M):
    z: int = -1

    def m(self):
        global G
        match self:
            case [1, *_] if self:
                pass
            case {"k": v} | K(z=v):
                return not v is None
"""


GOLDEN = {
    "f": ("591066d6abb1cce851c8", "4558fea75648993ce9c8"),
    "K": ("d8e011ceda7637efabf1", "ea92b41ac0d1351ff2d3"),
    "K.m": ("8318ecde06fac188eda5", "0d57a067cd187e315ae0"),
    "<module>": ("e3b0c44298fc1c149afb", "2bc2a2a44c2425d00a8f"),
}


def test_fingerprints_do_not_depend_on_the_version_of_the_parser() -> None:
    """They are kept in repositories: another value would ask for every review again."""
    found = {name: (f.signature, f.body) for name, f in fingerprint_symbols(SAMPLE).items()}
    assert found == GOLDEN
