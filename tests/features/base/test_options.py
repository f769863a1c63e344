"""base/options: a table makes field, flag and rules, and frameworks keep their habits."""

import os
from typing import Any

import pytest

from features.base.options_sample import OVERLAYS, write_sample_set
from harness.runner import run_on_cpu
from harness.trees import COMPARED_RELEASES, GIT_VARIABLE, Trees

CHECKS = "features.base.options_checks"
# Before 0.17 only the repository has megatron.training; asked where a test run has it.
GIT_RELEASES = ("core_v0.12.1", "core_v0.15.3") if GIT_VARIABLE in os.environ else ()
MEGATRON_FLAGS = ["--sample-kind", "round", "--moe-token-dispatcher-type", "sample"]
FLAGS = [
    *("--sample-count", "3", "--sample-sizes", "4", "5", "--no-sample-check"),
    "--use-flash-attn",
    *("--sample-adam", "0.5", "--sample-bucket", "8", "--optimization-level", "2"),
]
PARSED = {
    "sample_count": 3,
    "sample_sizes": [4, 5],
    "sample_check": False,
    "sample_parts": False,
    "sample_adam": 0.5,
    "sample_bucket": 8,
    "sample_dealloc": False,
    "use_flash_attn": True,
    "optimization_level": 2,
}

MODEL_PARALLEL: dict[str, Any] = {"sample_sizes": (1, 2), "optimization_level": None}
TRANSFORMER = MODEL_PARALLEL | {
    "sample_count": None,
    "sample_kind": "plain",
    "sample_check": True,
    "sample_parts": False,
    "sample_dealloc": False,
    "use_flash_attn": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "ModelParallelConfig": MODEL_PARALLEL,
    "TransformerConfig": TRANSFORMER,
    "MLATransformerConfig": TRANSFORMER,
    "HeterogeneousTransformerConfig": TRANSFORMER,
    "OptimizerConfig": {"sample_adam": 0.0},
    "DistributedDataParallelConfig": {"sample_bucket": None},
}


def ask(name: str, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
    return f"{CHECKS}:{name}", arguments


@pytest.fixture(scope="module")
def sample_trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Trees with the options of `options_sample`."""
    folder = tmp_path_factory.mktemp("options")
    return Trees(folder, overlays=write_sample_set(folder / "overlays"))


@pytest.fixture(scope="module", params=COMPARED_RELEASES)
def facts(request: pytest.FixtureRequest, sample_trees: Trees) -> dict[str, Any]:
    """What one release's tree says, asked in one process."""
    questions = {
        "imports": ask("list_imports"),
        "positional": ask("list_positional"),
        "options": ask("list_options"),
        "habits": ask("find_broken_habits"),
        "layer": ask("read_layer_config"),
        "rules": ask("break_rules"),
        "impurity": ask("find_impurity"),
        "changed": ask("change_after_construction"),
        "logs": ask("collect_logs"),
        "names": ask("misspell"),
        "maps": ask("map_to_upstream"),
        "status": ask("read_status"),
        "flags": ask("parse_plainly", FLAGS),
    }
    tree = sample_trees.patched(request.param, OVERLAYS)
    answers = run_on_cpu([tree], *questions.values())
    return dict(zip(questions, answers, strict=True)) | {"tag": request.param}


@pytest.fixture(scope="module", params=["core_v0.17.1", "core_v0.19.0", *GIT_RELEASES])
def megatron_flags(request: pytest.FixtureRequest, sample_trees: Trees) -> dict[str, Any]:
    """What Megatron's own parser makes of the flags."""
    kind = "core" if request.param not in GIT_RELEASES else "full"
    tree = sample_trees.patched(request.param, OVERLAYS, tree=kind)
    question = ask("parse_with_megatron", [*FLAGS, *MEGATRON_FLAGS])
    found: dict[str, Any] = run_on_cpu([tree], question)[0]
    return found


@pytest.fixture(scope="module")
def pristine(facts: dict[str, Any], sample_trees: Trees) -> dict[str, Any]:
    """The same of the unmodified release, as far as it can be asked."""
    questions = {"imports": ask("list_imports"), "positional": ask("list_positional")}
    # Importing from 0.18.2 on needs Triton, which patched trees do without.
    lend = "features.base.options_checks:lend_triton"
    tree = sample_trees.pristine(facts["tag"])
    answers = run_on_cpu([tree], (lend, (str(tree),)), *questions.values())
    return dict(zip(questions, answers[1:], strict=True))


def test_importing_megatron_brings_no_feature_and_no_other_package(
    facts: dict[str, Any], pristine: dict[str, Any]
) -> None:
    new = set(facts["imports"]) - set(pristine["imports"])
    ours = {name for name in new if name.startswith("mindspeed")}
    assert new == ours
    allowed = ("mindspeed.core.options", "mindspeed.core.missing_triton", "mindspeed.core.device")
    assert {name for name in ours if not name.startswith(allowed)} == {
        "mindspeed",
        "mindspeed.core",
        "mindspeed.option_table",
    }


def test_every_positional_argument_keeps_its_place(
    facts: dict[str, Any], pristine: dict[str, Any]
) -> None:
    assert facts["positional"] == pristine["positional"]


def test_options_are_keyword_only_fields_with_their_defaults(facts: dict[str, Any]) -> None:
    assert facts["options"] == OPTIONS


def test_configs_survive_what_frameworks_do_with_them(facts: dict[str, Any]) -> None:
    assert facts["habits"] == []


def test_layers_of_a_heterogeneous_model_keep_the_options(facts: dict[str, Any]) -> None:
    assert facts["layer"] == {"kind": "round", "count": 3, "class": "TransformerConfig"}


def test_every_rule_names_option_value_and_remedy(facts: dict[str, Any]) -> None:
    said = facts["rules"]
    parts = "OptionError: --sample-parts (sample_parts=True): "
    leave = "or leave sample_parts at False"
    assert said == said | {
        "nothing": "accepted",
        "type": "OptionError: --sample-count (sample_count='3'): must be int, and is str; "
        "change its type",
        "bool for int": "OptionError: --sample-count (sample_count=True): must be int, and is "
        "bool; change its type",
        "list": "OptionError: --sample-sizes (sample_sizes=3): must be list[int], and is int; "
        "change its type",
        "item": "OptionError: --sample-sizes (sample_sizes=[1, '2']): must be list[int], and "
        "holds str; change its type",
        "choice": "OptionError: --sample-kind (sample_kind='square'): must be one of plain, "
        "round; choose one of them",
        "minimum": "OptionError: --sample-count (sample_count=1): must be at least 2; raise it",
        "requires": f"{parts}needs sample_kind=round, and sample_kind is 'plain'; "
        f"set sample_kind=round, {leave}",
        "conflicts": f"{parts}cannot be together with attention_backend=flash|fused; "
        f"change attention_backend, {leave}",
        "function": f"{parts}num_layers is odd, 3; make it even",
        "optimizer": "OptionError: --sample-adam (sample_adam=-1.0): must be at least 0; raise it",
        "data parallel": "OptionError: --sample-bucket (sample_bucket=0): must be at least 1; "
        "raise it",
    }


def test_all_broken_rules_are_reported_together(facts: dict[str, Any]) -> None:
    lines = facts["rules"]["all"].splitlines()
    assert lines[0] == "OptionError: 5 rules of options are broken:"
    assert [line.partition(": ")[2].partition(";")[0] for line in lines[1:]] == [
        "must be at least 2",
        "needs sequence_parallel, and sequence_parallel is False",
        "needs sample_kind=round, and sample_kind is 'plain'",
        "cannot be together with attention_backend=flash|fused",
        "num_layers is odd, 3",
    ]


def test_validation_changes_nothing_and_repeats_itself(facts: dict[str, Any]) -> None:
    assert facts["impurity"] == []


def test_fields_set_after_construction_are_validated_when_used(facts: dict[str, Any]) -> None:
    said = facts["changed"]
    assert (said.pop("good"), said.pop("no config")) == ("accepted", "accepted")
    assert "sample_adam=-1.0" in said.pop("optimizer")
    assert "sample_bucket=0" in said.pop("data parallel")
    assert set(said) == {
        *("TransformerConfig", "MLATransformerConfig", "Provider", "Own", "Lazy", "finalize")
    }
    for name, text in said.items():
        assert text.startswith("OptionError: --sample-kind (sample_kind='square')"), (name, text)


def test_what_is_on_is_logged_once(facts: dict[str, Any]) -> None:
    on = "optimization_level=1, sample_count={}, sample/rewrite (by level)"
    assert facts["logs"] == [f"TransformerConfig: {on.format(count)}" for count in (11, 12)]


def test_unknown_names_are_explained_where_they_are_surely_not_meant(
    facts: dict[str, Any],
) -> None:
    near = "there is no sample_cont, did you mean sample_count?"
    absent = "absent_thing (--absent-thing) belongs to sample/absent, which is not in this build"
    said = facts["names"]
    assert said["near"] == f"TypeError: TransformerConfig(): {near}"
    assert said["near, derived"] == f"TypeError: Provider(): {near}"
    assert said["near, optimizer"].endswith("did you mean sample_adam?")
    assert said["absent"].startswith(f"TypeError: MLATransformerConfig(): {absent}: build with ")
    assert "unexpected keyword argument 'something_else'" in said["far"]
    assert said["attribute near"] == f"OptionError: {near}"
    assert said["attribute absent"].startswith(f"OptionError: {absent}")
    for name in ("other keyword", "attribute absent, off", "attribute far", "attribute own"):
        assert said[name] == "accepted", name


def test_option_that_megatron_has_by_another_name_sets_that(facts: dict[str, Any]) -> None:
    said = facts["maps"]
    disagrees = said.pop("disagreeing")
    if facts["tag"] == "core_v0.12.1":  # not yet upstream: nobody maps it
        assert (said, disagrees) == ({"off": False, "on": False, "late": False}, "accepted")
    else:
        assert said == {"off": False, "on": True, "late": True}
        assert "means deallocate_pipeline_outputs=True, and that is 'other'" in disagrees


def test_status_says_what_is_on_and_why(facts: dict[str, Any]) -> None:
    status = facts["status"]
    native = facts["tag"] != "core_v0.12.1"
    dealloc = "is True, not False: native in Megatron, deallocate_pipeline_outputs is True"
    assert status["active"] == {
        "optimization_level": "is 1, not None: base/options",
        "sample_kind": "is 'round', not 'plain': sample/options",
        "sample_dealloc": dealloc if native else "is True, not False: sample/options",
        "sample/rewrite": "optimization_level=1 covers its level, 1",
    }
    assert "sample_count" in status["inactive"]
    assert status["options"]["--sequence-parallel"].endswith("native in Megatron")
    assert "not built in: sample/absent" in status["text"]
    assert f"made of {facts['tag']}" in status["text"]
    assert status["main"].startswith(status["text"].partition("\n")[0])
    assert "--sample-count" in status["main"]
    assert status["model"] == (
        "mindspeed: TransformerConfig: optimization_level=1, sample_kind='round', "
        "sample_dealloc=True, sample/rewrite (by level)"
    )


def test_level_switches_on_what_has_no_option_of_its_own(facts: dict[str, Any]) -> None:
    assert facts["status"]["rewrites"] == [False, False, True, True]
    assert not any(facts["status"]["options as rewrites"])


def test_foreign_parser_gains_the_flags_that_it_lacks(facts: dict[str, Any]) -> None:
    assert facts["flags"]["parsed"] == PARSED | {"sample_kind": "mine"}
    defaults = {**OPTIONS["OptimizerConfig"], **OPTIONS["DistributedDataParallelConfig"]}
    assert facts["flags"]["empty"] == TRANSFORMER | defaults
    assert "--absent-thing belongs to sample/absent" in facts["flags"]["absent"]
    said = facts["flags"]["of MindSpeed"]
    assert "--coc-mode belongs to MindSpeed's coc, which no overlay brings" in said
    assert "--nonsense belongs" not in said


def test_megatron_makes_each_flag_once_and_its_config_has_the_value(
    megatron_flags: dict[str, Any],
) -> None:
    assert megatron_flags["twice"] == []
    assert megatron_flags["parsed"] == PARSED | {"sample_kind": "round"}
    assert megatron_flags["config"] == {
        "sample_count": 3,
        "sample_sizes": [4, 5],
        "use_flash_attn": True,
    }
    assert megatron_flags["dispatcher"] == "sample"


@pytest.mark.parametrize("first", ["megatron.core.transformer.mlp", "mindspeed.arguments"])
def test_import_order_changes_nothing(sample_trees: Trees, first: str) -> None:
    tree = sample_trees.patched("core_v0.16.1", OVERLAYS)
    found = run_on_cpu([tree], ask("import_first", first))[0]
    assert "5 rules of options are broken" in found.pop("said")
    assert {name: found[name] for name in ("TransformerConfig", "OptimizerConfig")} == {
        "TransformerConfig": TRANSFORMER,
        "OptimizerConfig": OPTIONS["OptimizerConfig"],
    }
