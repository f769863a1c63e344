"""The structure of Python source, on the shapes that occur in Megatron and on hostile ones."""

from textwrap import dedent

import pytest

from mindspeed_overlay.syntax import (
    MODULE,
    Call,
    Import,
    Module,
    Parameter,
    parse_module,
    parse_outline,
)


def parse(source: str) -> Module:
    return parse_module(dedent(source).lstrip("\n").encode())


LAYER = """
    import torch
    from megatron.core import parallel_state as mpu

    @dataclass
    class Spec:
        size: int
        bias: bool = False

    class MLP(MegatronModule, Generic[T], metaclass=Meta):
        @property
        def width(self):
            return self._width

        @width.setter
        def width(self, value):
            self._width = value

        @jit_fuser
        def forward(self, x, /, y: int, z=None, *rest, w, v: int = 3, **kwargs) -> int:
            def inner(a):
                return a

            return inner(x)


    def build(*, config):
        return MLP(config)
"""


def test_symbols_are_dotted_and_begin_at_their_decorators() -> None:
    symbols = [
        (s.qualname, s.kind, s.first_line, s.def_line, s.last_line) for s in parse(LAYER).symbols
    ]
    assert symbols == [
        ("Spec", "class", 4, 5, 7),
        ("MLP", "class", 9, 9, 23),
        ("MLP.width", "function", 10, 11, 12),
        ("MLP.width", "function", 14, 15, 16),
        ("MLP.forward", "function", 18, 19, 23),
        ("MLP.forward.inner", "function", 20, 20, 21),
        ("build", "function", 26, 26, 27),
    ]


@pytest.mark.parametrize(
    ("line", "symbol"),
    [
        (1, MODULE),
        (4, "Spec"),
        (8, MODULE),
        (10, "MLP.width"),
        (13, "MLP"),
        (18, "MLP.forward"),
        (21, "MLP.forward.inner"),
        (23, "MLP.forward"),
        (24, MODULE),
        (27, "build"),
        (99, MODULE),
    ],
)
def test_a_line_belongs_to_its_innermost_definition(line: int, symbol: str) -> None:
    assert parse(LAYER).symbol_at(line) == symbol


def test_a_name_defined_twice_has_two_spans_and_no_single_one() -> None:
    module = parse(LAYER)
    assert module.span_of("MLP.width") is None
    assert module.spans_of("MLP.width") == ((10, 12), (14, 16))
    assert module.span_of("MLP.forward") == (18, 23)
    assert module.span_of("MLP.backward") is None
    assert module.spans_of("MLP.backward") == ()
    assert module.span_of(MODULE) == (1, 27)


def test_a_signature_keeps_kinds_and_defaults() -> None:
    (forward,) = parse(LAYER).by_qualname["MLP.forward"]
    assert forward.signature is not None
    assert forward.signature.parameters == (
        Parameter("self", "positional-only"),
        Parameter("x", "positional-only"),
        Parameter("y", "plain"),
        Parameter("z", "plain", True),
        Parameter("rest", "variadic"),
        Parameter("w", "keyword-only"),
        Parameter("v", "keyword-only", True),
        Parameter("kwargs", "keywords"),
    )
    assert forward.signature.has_varargs
    assert forward.signature.has_kwargs
    assert forward.decorators == ("jit_fuser",)


def test_a_class_keeps_bases_fields_and_assigned_attributes() -> None:
    module = parse(LAYER)
    (mlp,) = module.by_qualname["MLP"]
    assert mlp.bases == ("MegatronModule", "Generic[T]")
    assert mlp.class_keywords == ("metaclass",)
    assert mlp.attributes == {"_width"}
    (spec,) = module.by_qualname["Spec"]
    assert [(f.name, f.default) for f in spec.fields] == [("size", None), ("bias", "False")]


def test_module_bindings_are_found_inside_compound_statements() -> None:
    module = parse("""
        import a.b, c.d as e
        from f import (g, h as i)
        from .. import j
        from k import *
        try:
            import l
        except ImportError as err:
            l = None
        if x:
            def m(): pass
        elif y:
            n, (o, *p) = q
        for r in s:
            t += 1
        with u() as v, w() as (x1, x2):
            class y1: pass
        if (z := 1): pass
        match v:
            case {"k": cap, **more} | [cap, *more]: pass
        aa: int = 3
        bare: int
        total = sum(hidden for hidden in v)
        key = lambda also_hidden: 1
        def setter():
            global late
            late = local = 1
        type Alias[T] = list[T]
    """)
    expected = "a e g i j l err m n o p r t v x1 x2 y1 z cap more aa total key setter late Alias"
    assert set(expected.split()) <= set(module.top_level)
    assert not {"bare", "hidden", "also_hidden", "local", "q", "h", "b", "self"} & set(
        module.top_level
    )


def test_imports_know_their_scope_and_guard() -> None:
    module = parse("""
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .config import Config
        else:
            from .real import Config
        try:
            import te
        except (ImportError, AttributeError):
            from . import stub as te
        try:
            from a import b
        except ValueError:
            pass
        with contextlib.suppress(ImportError):
            import opt
        def f():
            try:
                from .. x import *
            except:
                pass
    """)
    found = [(i.module, i.level, i.name, i.bound, i.symbol, i.guard) for i in module.imports]
    assert found == [
        ("typing", 0, "TYPE_CHECKING", "TYPE_CHECKING", MODULE, ""),
        ("config", 1, "Config", "Config", MODULE, "typing"),
        ("real", 1, "Config", "Config", MODULE, ""),
        ("te", 0, "", "te", MODULE, "try"),
        ("", 1, "stub", "te", MODULE, ""),
        ("a", 0, "b", "b", MODULE, ""),
        ("opt", 0, "", "opt", MODULE, "try"),
        ("x", 2, "*", "", "f", "try"),
    ]


def test_calls_know_their_arguments_and_scope() -> None:
    module = parse("""
        @wrap(1)
        def f(a=default(2)):
            return g.h(a, 3, *r, k=1, # note
                       l=2, **kw)
        class C:
            field: int = make(x for x in y)
            def __init__(self):
                super().__init__(1)
                table[0](2)
                f(1)(2).h(3)
    """)

    def call(callee: str, line: int, symbol: str, *positional: str) -> Call:
        return Call(
            callee=callee,
            positional=positional,
            keywords=(),
            has_star_args=False,
            has_star_kwargs=False,
            line=line,
            symbol=symbol,
        )

    assert module.calls == (
        call("wrap", 1, MODULE, "1"),
        call("default", 2, MODULE, "2"),
        Call(
            callee="g.h",
            positional=("a", "3"),
            keywords=("k", "l"),
            has_star_args=True,
            has_star_kwargs=True,
            line=3,
            symbol="f",
        ),
        call("make", 6, "C", "(x for x in y)"),
        call("super().__init__", 8, "C.__init__", "1"),
        call("super", 8, "C.__init__"),
        call("f", 10, "C.__init__", "1"),
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("__all__ = ['a', \"b\",]", ("a", "b")),
        ("__all__: list[str] = ('a',)", ("a",)),
        ("__all__ = ['a'] + other.__all__", None),
        ("__all__ = ['a']\n__all__ += ['b']", None),
        ("__all__ = ['a']\n__all__.extend(['b'])", None),
        ("a = 1", None),
    ],
)
def test_all_names_are_known_only_when_literal(source: str, names: tuple[str, ...] | None) -> None:
    assert parse_module(source.encode()).all_names == names


def test_line_ends_don_t_change_the_structure() -> None:
    unix = dedent(LAYER).encode()
    dos = parse_module(unix.replace(b"\n", b"\r\n"))
    assert dos.spans_of("MLP.width") == parse_module(unix).spans_of("MLP.width")
    assert dos.num_lines == parse_module(unix).num_lines


def test_bytes_that_are_not_utf8_don_t_disturb() -> None:
    module = parse_module(b"# \xe9t\xe9 \xff\ndef f(a='\xe9'):\n    return g('\xfe')\n")
    assert module.span_of("f") == (2, 3)
    assert [c.callee for c in module.calls] == ["g"]


def test_a_missing_final_newline_still_counts_the_line() -> None:
    module = parse_module(b"def f():\n    return 1")
    assert module.span_of("f") == (1, 2)
    assert module.num_lines == 2
    assert parse_module(b"").span_of(MODULE) == (1, 1)


def test_deep_nesting_needs_no_recursion() -> None:
    chain = "x = a" + ".b(1)" * 3000 + " + 1" * 3000 + "\ndef f(): pass\n"
    assert parse_module(chain.encode()).span_of("f") == (2, 2)


def test_broken_text_gives_what_is_whole() -> None:
    module = parse("""
        def f():
            return 1

        def g():
            x = = 2

        def h():
            return 3
    """)
    assert module.has_error
    assert module.span_of("f") == (1, 2)
    assert module.span_of("h") == (7, 8)


def test_a_module_that_makes_names_at_run_time_is_dynamic() -> None:
    assert parse("def __getattr__(name): ...").is_dynamic
    assert parse("globals()['x'] = 1").is_dynamic
    assert not parse("def f(): return globals()").is_dynamic
    assert not parse("class C:\n    def __getattr__(self, n): ...").is_dynamic


def test_an_outline_leaves_function_bodies_out() -> None:
    data = dedent(LAYER).lstrip("\n").encode() + b"# parsed nowhere else\n"
    outline, whole = parse_outline(data), parse_module(data)
    assert outline.by_qualname.keys() == whole.by_qualname.keys() - {"MLP.forward.inner"}
    assert outline.top_level == whole.top_level
    assert outline.calls == ()


def test_no_outline_is_made_of_what_was_parsed_whole() -> None:
    data = b"def forward(self): return self.inner()\n# parsed nowhere else\n"
    whole = parse_module(data)
    assert parse_outline(data) is whole


def test_an_import_without_a_name_binds_the_first_part() -> None:
    (found,) = parse("import a.b.c").imports
    assert found == Import(module="a.b.c", level=0, name="", bound="a", line=1, symbol=MODULE)
