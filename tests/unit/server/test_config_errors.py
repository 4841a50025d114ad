"""A configuration that cannot be used is told by place, finding and remedy; never by a traceback."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_server.config import SamplerConfig
from loaderd_server.config_file import ConfigError, parse_config, read_config
from loaderd_server.core.settings import ErrorPolicy, Mode
from loaderd_server.plans import core_settings, dataset_plans
from loaderd_server.units import parse_size, show_size
from loaderd_server.workers.plan_codec import decode_plan, encode_plan


def tree(stream: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """A right configuration with some of it changed."""
    settings: dict[str, Any] = {"dataset": "photos", "batch_size": 8, **(stream or {})}
    settings = {key: value for key, value in settings.items() if value is not ...}
    return {"datasets": {"photos": {"target": "a.b:C"}}, "streams": {"train": settings}, **top}


def mixed(*sources: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Settings of a stream over a mixture."""
    return {"dataset": {"mixture": list(sources), **settings}}


GOOD: dict[str, Any] = {"dataset": "photos", "weight": 0.7}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"streams: Field required"),
    ({"streams": {}}, r"streams: .*at least 1 item"),
    (tree(strems={}), r"strems: unknown key; did you mean 'streams'\?"),
    (tree({"batchsize": 3}), r"streams\.train\.batchsize: unknown key; did you mean 'batch_size'"),
    (tree(workers={"conut": 1}), r"workers\.conut: unknown key; did you mean 'count'"),
    (tree({"batch_size": 0}), r"streams\.train\.batch_size: .*greater than or equal to 1.*found 0"),
    (tree({"batch_size": ...}), r"streams\.train: batch_size is missing"),
    (tree({"dataset": "photo"}), r"no dataset 'photo'; did you mean 'photos'\?"),
    (tree({"dataset": {"target": "nocolon"}}), r"dataset\.target: a target is written"),
    (
        tree({"mode": "brodcast"}),
        r"mode: .*'broadcast', 'shard', 'queue' or 'independent'.*found 'brodcast'",
    ),
    (tree({"seed": -1}), r"seed: .*greater than or equal to 0"),
    (tree({"seed": 2**63}), r"seed: .*less than or equal to"),
    (tree({"on_error": "skp"}), r"'raise', 'skip' or 'substitute'"),
    (tree({"on_error": {"policy": "skip", "max_rate": 2}}), r"on_error\.max_rate: .*found 2"),
    (tree({"sampler": "rndom"}), r"sampler: .*'sequential' or 'random'"),
    (tree({"sampler": {}}), r"needs exactly one of weighted, subset, target, batch_target"),
    (tree({"sampler": {"weighted": {"weights": [1], "nums": 1}}}), r"weighted\.nums: unknown key"),
    (tree({"sampler": {"batch_target": "a:b"}}), r"batch_size is given, but sampler\.batch_target"),
    (tree({"slots": 3}), r"slots: 3 is too few; 2 workers need at least 4"),
    (
        tree({"slots": 10, "slot_bytes": "1GiB"}),
        r"10 slots of 1073741824 bytes need .*raise memory",
    ),
    (tree({"slot_bytes": 0}), r"slot_bytes: 0 bytes hold no batch"),
    (tree({"slot_bytes": "lots"}), r"'lots' is no size; write bytes or a unit, such as 512MiB"),
    (tree({"transform": [{"a": {}, "b": {}}]}), r"transform: .*is no transform; write a name"),
    (tree({"transform": [{"target": "x", "args": {}}]}), r"transform"),
    (tree({"collate": "mine"}), r"streams\.train\.collate: "),
    (tree(memory="-1GiB"), r"memory: .*no size"),
    (tree(memory=0), r"memory: .*greater than 0"),
    (tree(workers={"count": 0}), r"workers\.count: .*greater than or equal to 1"),
    (tree(workers={"timeout_s": 0}), r"workers\.timeout_s: .*greater than 0"),
    (tree(workers={"start_method": "thread"}), r"start_method: .*'fork' or 'spawn'"),
    (tree(workers={"affinity": "core"}), r"affinity: .*'none', 'cores' or 'numa'"),
    (tree(workers={"niceness": 20}), r"niceness: .*less than or equal to 19"),
    (tree(workers={"worker_init": "f"}), r"worker_init: a target is written"),
    (
        tree(mixed(GOOD, {"dataset": "photo"})),
        r"train\.dataset\.mixture\[1\]\.dataset: there is no dataset 'photo'; did you mean 'photos'",
    ),
    (tree(mixed()), r"dataset\.mixture: List should have at least 1 item"),
    (tree(mixed({**GOOD, "weight": 0})), r"mixture\[0\]\.weight: .*greater than 0 \(found 0\)"),
    (tree(mixed({**GOOD, "weight": float("inf")})), r"weight: Input should be a finite number"),
    (tree(mixed({**GOOD, "wieght": 2})), r"\[0\]\.wieght: unknown key; did you mean 'weight'\?"),
    (tree(mixed({**GOOD, "sampler": {}})), r"\[0\]\.sampler: .*'sequential' or 'random'"),
    (tree(mixed({"dataset": {"target": "x"}})), r"\[0\]\.dataset\.target: a target is written"),
    (tree(mixed(GOOD, exhausted="halt")), r"exhausted: .*'stop', 'repeat' or 'drop'.*'halt'"),
    (tree(mixed(GOOD, exhuasted="stop")), r"exhuasted: unknown key; did you mean 'exhausted'\?"),
    (tree(mixed(GOOD, exhausted="repeat", samples=0)), r"samples: .*greater than or equal to 1"),
    (
        tree(mixed(GOOD, samples=9)),
        r"train\.dataset: samples is given, but with exhausted: stop .* set exhausted: repeat",
    ),
    (
        tree({**mixed(GOOD), "sampler": {"subset": {"indices": [1]}}}),
        r"streams\.train: a mixture draws its own order.*sampler can only be random or sequential",
    ),
    (
        tree({**mixed(GOOD), "sampler": {"batch_target": "a:b"}, "batch_size": ...}),
        r"streams\.train: a mixture draws its own order.*make them one dataset",
    ),
    (
        tree({"dataset": "${NO_SUCH_THING}"}),
        r"streams\.train\.dataset: .*no variable NO_SUCH_THING",
    ),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says for _tree, says in WRONG])
def test_what_is_wrong_is_named_with_its_place(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(wrong, environment={})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds nothing"),
        ("- a\n- b\n", "holds a list"),
        ("a: [1, 2\n", "is not YAML"),
        ("a: &x [*x]\n", "unknown key|nested"),
        ("\tx: 1", "is not YAML"),
        ("x: !!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_files_that_are_no_configuration_are_told_so(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "cfg.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_config(path)


def test_files_that_cannot_be_read_are_told_so(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4\xff")
    for path in (tmp_path, tmp_path / "missing.yaml", tmp_path / "latin.yaml"):
        with pytest.raises(ConfigError, match="cannot read"):
            read_config(path)


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree({"mode": "x", "seed": -1}, workers={"count": 0}))
    assert len(str(caught.value).splitlines()) == 4


def test_variables_are_expanded_with_defaults_and_escapes() -> None:
    source = tree({"dataset": {"target": "a:b", "args": {"root": "${ROOT}/x", "y": ["$$5"]}}})
    source["streams"]["train"]["seed"] = "${SEED:-7}"
    config = parse_config(source, environment={"ROOT": "/data"})
    (plan,) = dataset_plans(config, Path("/"))
    assert plan.dataset.args == {"root": "/data/x", "y": ["$5"]}
    assert plan.streams[0].seed == 7


def test_a_configuration_becomes_settings_and_plans() -> None:
    stream = {
        "mode": "shard",
        "sampler": {"weighted": {"weights": [1, 2]}},
        "transform": ["to_chw", {"resize": {"size": 3}}, {"target": "m:t", "args": {"a": 1}}],
        "collate": {"target": "m:c", "args": {"b": 2}},
        "on_error": {"policy": "skip", "max_count": 5},
        "slot_bytes": "1MiB",
        "slots": 8,
    }
    config = parse_config(tree(stream, python_path=["src"]))
    (settings,) = core_settings(config).streams
    assert (settings.mode, settings.slot_bytes, settings.slots) == (Mode.SHARD, 2**20, 8)
    assert (settings.on_error.policy, settings.on_error.max_count) == (ErrorPolicy.SKIP, 5)
    (plan,) = dataset_plans(config, Path("/cfg"))
    assert plan.python_path == ("/cfg/src",)
    (made,) = plan.streams
    assert [t.target for t in made.transforms] == ["to_chw", "resize", "m:t"]
    assert made.collate is not None
    assert made.collate.args == {"b": 2}
    assert made.sampler.kind == "weighted"


def test_a_dataset_within_a_stream_goes_by_the_streams_name() -> None:
    config = parse_config(tree({"dataset": {"target": "a:b"}}))
    assert core_settings(config).streams[0].dataset == "streams.train"
    assert [plan.name for plan in dataset_plans(config, Path("/"))] == ["streams.train"]


def test_a_mixture_becomes_one_dataset_and_a_sampler() -> None:
    inline = {"target": "m:D", "args": {"n": 3}}
    sources = (GOOD, {"dataset": inline, "weight": 0.3, "sampler": "sequential"})
    source = tree({**mixed(*sources, exhausted="repeat", samples=50), "collate": "m:c"})
    source["datasets"]["photos"]["args"] = {"root": "/p"}
    config = parse_config(source)
    (plan,) = dataset_plans(config, Path("/"))
    assert plan.name == core_settings(config).streams[0].dataset == "streams.train"
    assert plan.dataset.target == "loaderd_server.datasets.mixture:mixture"
    assert plan.dataset.args == {
        "sources": [
            {"name": "photos", "target": "a.b:C", "args": {"root": "/p"}},
            {"name": "m:D", "target": "m:D", "args": {"n": 3}},
        ],
        "has_collate": True,
    }
    sampler = plan.streams[0].sampler
    assert (sampler.kind, sampler.args) == (
        "mixture",
        {
            "weights": [0.7, 0.3], "samplers": ["random", "sequential"],
            "exhausted": "repeat", "samples": 50,
        },
    )  # fmt: skip
    assert decode_plan(encode_plan(plan)) == plan


def test_states_name_what_fixes_the_orders_of_a_mixture() -> None:
    def facts(**settings: Any) -> dict[str, str]:
        weighted = {**GOOD, "weight": settings.pop("weight", 0.7)}
        source = tree(mixed(weighted, {"dataset": {"target": "m:D"}}, **settings))
        return dict(core_settings(parse_config(source)).streams[0].order)

    ours = facts()
    assert ours.pop("sources")
    assert ours == {
        "dataset": "mixture of photos, m:D",
        "weights": "0.7, 1",
        "sampler": "random",
        "exhausted": "stop",
    }
    assert facts(weight=2)["weights"] == "2, 1"
    assert facts(exhausted="repeat", samples=7)["epoch_samples"] == "7"


def test_streams_of_one_dataset_share_its_plan() -> None:
    source = tree()
    source["streams"]["val"] = {"dataset": "photos", "batch_size": 1, "sampler": "sequential"}
    (plan,) = dataset_plans(parse_config(source), Path("/"))
    assert [stream.name for stream in plan.streams] == ["train", "val"]


@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["streams", "datasets", "workers", "target", "args", "dataset",
                             "batch_size", "sampler", "memory", "transform", "mixture", "x"]),
            inner, max_size=4),
    ), max_leaves=12))  # fmt: skip
def test_any_tree_is_a_configuration_or_a_config_error(value: Any) -> None:
    if not isinstance(value, dict):
        return
    with contextlib.suppress(ConfigError):  # anything else fails the test
        parse_config(value, environment={})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), (5, 5), ("2KiB", 2048), ("1.5 GiB", 3 * 2**29), ("3MB", 3_000_000), ("1g", 2**30)],
)
def test_sizes_take_units(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 parsec", "-1", None, 1.5, True, [1]])
def test_what_is_no_size_is_an_error(text: object) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


def test_sizes_are_shown_in_the_largest_unit() -> None:
    assert [show_size(n) for n in (12, 2048, 3 * 2**20, 5 * 2**29)] == [
        "12 bytes", "2 KiB", "3 MiB", "2.5 GiB",
    ]  # fmt: skip


def test_a_sampler_is_exactly_one_thing() -> None:
    with pytest.raises(ValueError, match="args belong to target"):
        SamplerConfig.model_validate({"subset": {"indices": [1]}, "args": {"x": 1}})
