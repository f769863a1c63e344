"""Option tables: what is read, what is refused, what a build's table and the docs page say."""

import ast
from pathlib import Path
from typing import Any

import pytest

from mindspeed_overlay.check_options import check_options
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.errors import DefinitionError
from mindspeed_overlay.option import Option
from mindspeed_overlay.option_docs import describe_options
from mindspeed_overlay.overlay import OverlaySet, load_overlays
from mindspeed_overlay.pins import load_pins
from mindspeed_overlay.plan import Plan, Selection, make_plan
from unit.overlay_sets import TAGS, load, make_pins, make_release, write_overlay, write_series

TABLE = "mindspeed/option_table.py"
PAGE = Path(__file__).parents[2] / "docs" / "options.md"
REQUIRES = 'requires = ["base/options"]\n'


def option_toml(flag: str = "--use-x", **keys: str) -> str:
    """One `[[option]]` table; values are TOML."""
    field = flag.removeprefix("--").replace("-", "_")
    table = {"flag": f'"{flag}"', "field": f'"{field}"', "config": '"TransformerConfig"'}
    table |= {"type": '"bool"', "default": "false", "help": '"x"'} | keys
    return "\n[[option]]\n" + "".join(f"{k} = {v}\n" for k, v in table.items() if v)


def write_set(root: Path, **tomls: str) -> OverlaySet:
    """A set of base/options and of one overlay for each keyword, `fusions/<keyword>`."""
    write_series(root, "base/options", *(f"fusions/{name}" for name in tomls))
    write_overlay(root, "base/options", option_toml("--first"))
    for name, toml in tomls.items():
        write_overlay(root, f"fusions/{name}", REQUIRES + toml)
    return load(root)


def plan_of(overlays: OverlaySet, tag: str = "core_v2", *features: str) -> Plan:
    selection = Selection(features=features)
    return make_plan(overlays, make_pins(), make_release(tag), selection=selection)


def table_of(plan: Plan) -> dict[str, Any]:
    """The constants of a plan's option table."""
    files = {path: data for _, path, data in plan.files}
    module = ast.parse(files[TABLE])
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def find_row(plan: Plan, flag: str) -> dict[str, Any]:
    rows: tuple[dict[str, Any], ...] = table_of(plan)["OPTIONS"]
    return next(row for row in rows if row["flag"] == flag)


def messages(root: Path, **tomls: str) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        write_set(root, **tomls)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": '"dict"'}, "type must be one of bool, int, float, str, list[int]"),
        ({"type": '"list[int]"', "default": "[1, 'a']"}, "default [1, 'a'] is no list[int]"),
        ({"type": '"int"', "default": "true"}, "default True is no int"),
        ({"type": '"int"', "default": "3", "choices": "[1, 2]"}, "not among its choices"),
        ({"type": '"int"', "default": "", "choices": "[1, 'a']"}, "every choice must be int"),
        ({"choices": "[true]"}, "a bool has no choices"),
        ({"minimum": "1"}, "minimum is for int and float"),
        ({"requires": '"y"'}, "requires must be a list"),
        ({"requires": '["y > 3"]'}, "cannot read the condition 'y > 3'"),
        ({"checks": '["mindspeed.x"]'}, "must look like mindspeed.core.module:function"),
        ({"checks": '["mindspeed.x:look"]'}, "no look in mindspeed/x.py"),
        ({"owner": '"upstream"'}, "owner must be"),
        ({"owner": '"upstream since core_v9"'}, "owner must be"),
        ({"extends": "true"}, "extends needs the choices"),
        ({"flag_owner": '"them"'}, "flag_owner must be `ours` or `upstream`"),
        ({"maps": '{ field = "y" }'}, "maps needs an owner"),
        ({"owner": '"upstream since core_v2"', "maps": '{ to = "y" }'}, "maps must be"),
        ({"config": ""}, "config is missing"),
        ({"field": '"X"'}, "must look like use_fused_swiglu"),
        ({"colour": '"red"'}, "unknown key 'colour'"),
    ],
)
def test_wrong_option_is_refused_by_flag(
    tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    found = messages(tmp_path, x=option_toml(**keys))
    assert any(message in text and "--use-x" in text for text in found) or message in found[0]


def test_two_overlays_cannot_have_one_flag_or_one_field(tmp_path: Path) -> None:
    other = option_toml("--other", field='"use_x"')
    found = messages(tmp_path, a=option_toml(), b=option_toml(), c=other)
    assert "--use-x is an option of fusions/a too" in found
    assert "TransformerConfig.use_x is an option of fusions/b too" in found


def test_condition_on_a_field_of_another_config_is_refused(tmp_path: Path) -> None:
    adam = option_toml("--adam", config='"OptimizerConfig"')
    (text,) = messages(tmp_path, a=adam, b=option_toml(requires='["adam"]'))
    assert text == "--use-x: 'adam' is of OptimizerConfig, TransformerConfig has no such"


def test_condition_on_a_field_of_the_base_config_is_accepted(tmp_path: Path) -> None:
    base = option_toml("--base", config='"ModelParallelConfig"')
    write_set(tmp_path, a=base, b=option_toml(requires='["base=true"]'))


def test_options_need_the_overlay_that_makes_them_work(tmp_path: Path) -> None:
    write_series(tmp_path, "base/options", "base/middle", "fusions/a", "fusions/b")
    write_overlay(tmp_path, "base/options")
    write_overlay(tmp_path, "base/middle", REQUIRES)
    write_overlay(tmp_path, "fusions/a", 'requires = ["base/middle"]\n' + option_toml())
    write_overlay(tmp_path, "fusions/b", option_toml("--use-y"))
    with pytest.raises(DefinitionError) as caught:
        load(tmp_path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.overlay) == ("E406", "fusions/b")


def test_table_belongs_to_the_overlay_that_reads_it(tmp_path: Path) -> None:
    overlays = write_set(tmp_path, a=option_toml())
    assert [owner for owner, path, _ in plan_of(overlays).files if path == TABLE] == [
        "base/options"
    ]
    write_series(tmp_path / "other", "base/x")
    write_overlay(tmp_path / "other", "base/x")
    assert not plan_of(load(tmp_path / "other")).files


def test_table_lists_this_build_and_what_it_lacks(tmp_path: Path) -> None:
    overlays = write_set(
        tmp_path, a=option_toml(), b=option_toml("--use-y"), c="by-level = true\nlevel = 2\n"
    )
    table = table_of(plan_of(overlays, "core_v2", "fusions/a", "fusions/c"))
    assert table["RELEASE"] == "core_v2"
    assert [row[:3] for row in table["OVERLAYS"]] == [
        ("base/options", 0, False),
        ("fusions/a", 0, False),
        ("fusions/c", 2, True),
    ]
    assert [row["flag"] for row in table["OPTIONS"]] == ["--first", "--use-x"]
    assert table["ABSENT"] == (("fusions/b", "--use-y", "use_y"),)


def test_option_is_native_from_the_release_that_its_owner_names(tmp_path: Path) -> None:
    rules = {"requires": '["y"]', "owner": '"upstream since core_v2"'}
    overlays = write_set(tmp_path, a=option_toml(**rules))
    old, new = (find_row(plan_of(overlays, tag), "--use-x") for tag in ("core_v1", "core_v2"))
    assert (old["native"], old["requires"]) == (False, ("y",))
    assert (new["native"], new["requires"]) == (True, ())


def test_mapped_option_keeps_its_rules_and_maps_from_its_release_on(tmp_path: Path) -> None:
    maps = '{ field = "overlap", value = 2 }'
    keys = {"requires": '["y"]', "owner": '"upstream since core_v2"', "maps": maps}
    overlays = write_set(tmp_path, a=option_toml(**keys))
    old, new = (find_row(plan_of(overlays, tag), "--use-x") for tag in ("core_v1", "core_v2"))
    assert (old["native"], old["maps"]) == (False, {})
    assert (new["native"], new["maps"]) == (True, {"field": "overlap", "value": 2})
    assert new["requires"] == ("y",)


def test_option_of_another_overlay_changes_the_digest_of_the_table(tmp_path: Path) -> None:
    digests = set()
    for name, keys in {"one": {}, "two": {"help": '"y"'}, "three": {"default": "true"}}.items():
        plan = plan_of(write_set(tmp_path / name, a=option_toml(**keys)))
        digests.add((plan.overlay_digest("base/options"), plan.build_digest("5" * 64)))
    assert len(digests) == 3


def test_list_default_is_a_tuple_in_the_table(tmp_path: Path) -> None:
    overlays = write_set(tmp_path, a=option_toml(type='"list[str]"', default='["a", "b"]'))
    assert find_row(plan_of(overlays), "--use-x")["default"] == ("a", "b")


EXTENDS = {"extends": "true", "type": '"str"', "choices": '["a"]', "default": ""}
UPSTREAM = {
    "megatron/core/model_parallel_config.py": (
        b"class ModelParallelConfig:\n    parallel: int = 1\n"
    ),
    "megatron/core/transformer/transformer_config.py": (
        b"@dataclass\nclass TransformerConfig(ModelParallelConfig):\n"
        b"    overlap: bool = False\n    def f(self):\n        inner: int = 3\n"
        b"@dataclass\nclass MLATransformerConfig(TransformerConfig):\n    latent: int = 0\n"
    ),
    "megatron/training/arguments.py": b"group.add_argument('--old-flag', type=int)\n",
}


@pytest.mark.parametrize(
    ("flag", "keys", "message"),
    [
        ("--use-x", {}, ""),
        ("--inner", {}, ""),
        ("--latent", {}, ""),
        ("--overlap", {}, "TransformerConfig has overlap upstream; say"),
        ("--parallel", {}, "TransformerConfig has parallel upstream; say"),
        ("--overlap", {"owner": '"upstream since core_v1"'}, ""),
        ("--use-x", {"owner": '"upstream since core_v1"'}, "has no use_x upstream"),
        ("--overlap", EXTENDS, ""),
        (
            "--use-x",
            {"owner": '"upstream since core_v1"', "maps": '{ field = "gone" }'},
            "maps to gone, which TransformerConfig lacks",
        ),
        ("--use-x", {"owner": '"upstream since core_v1"', "maps": '{ field = "overlap" }'}, ""),
        ("--old-flag", {}, "megatron/training/arguments.py lists the flag; say"),
        ("--old-flag", {"flag_owner": '"upstream"'}, ""),
        ("--use-x", {"flag_owner": '"upstream"'}, "does not list the flag"),
        ("--old-flag", EXTENDS, "has no old_flag upstream"),
        ("--old-flag", EXTENDS | {"flag_owner": '"upstream"'}, ""),
        ("--use-x", EXTENDS | {"flag_owner": '"upstream"'}, "does not list the flag"),
    ],
)
def test_owner_is_held_against_the_release(
    tmp_path: Path, flag: str, keys: dict[str, str], message: str
) -> None:
    overlay = write_set(tmp_path, a=option_toml(flag, **keys)).get("fusions/a")
    problems = check_options(overlay, "core_v1", TAGS, UPSTREAM)
    assert len(problems) == bool(message)
    assert all(message in problem.message and problem.code == "E436" for problem in problems)


def test_page_says_every_rule_of_an_option(tmp_path: Path) -> None:
    everything = option_toml(
        type='"int"', default="2", minimum="1", requires='["y=1"]', conflicts='["z"]'
    )
    native = option_toml(
        "--use-y",
        owner='"upstream since core_v2"',
        maps='{ field = "overlap", value = true }',
    )
    more = option_toml("--z", type='"str"', default="", choices='["a", "b"]', extends="true")
    overlays = write_set(tmp_path, a=everything, b=native, c=more).overlays
    page = describe_options(overlays, TAGS)
    assert "### `--use-x`\n\n`TransformerConfig.use_x`: int, default `2`. x\n" in page
    for line in (
        "- at least 1",
        "- needs `y=1`",
        "- not together with `z`",
        "- from core 2 on sets Megatron's own `overlap=true`",
        "- Megatron's own option; adds `a`, `b`",
    ):
        assert f"{line}\n" in page


def test_options_page_is_up_to_date() -> None:
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    page = describe_options(load_overlays(default_overlays(), tags=tags).overlays, tags)
    assert PAGE.read_text("utf-8") == page, "`mindspeed-overlay show --options > docs/options.md`"


def test_option_reads_its_owner_in_pin_order() -> None:
    known: dict[str, Any] = {"config": "TransformerConfig", "type": "bool", "help": ""}
    option = Option(flag="--x", field="x", owner="upstream since core_v2", **known)
    assert [option.is_upstream(tag, TAGS) for tag in TAGS] == [False, True, True]
