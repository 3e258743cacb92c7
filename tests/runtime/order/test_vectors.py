"""The test vectors are what this package gives, and what the code of docs/order.md gives."""

from __future__ import annotations

import json
import re
import runpy
from typing import Any

import pytest

from dataprep.runtime.loader.batch_sampler import GlobalBatchSampler
from dataprep.runtime.mixture.order import WeightedSource, WeightedSources
from dataprep.runtime.sample_numbers import PADDING
from tests.support import REPOSITORY

FIXTURES = REPOSITORY / "data_fixtures"
VECTORS: dict[str, Any] = json.loads((FIXTURES / "vectors.json").read_text("ascii"))
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the code of docs/order.md defines."""
    text = (REPOSITORY / "docs" / "order.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    for code in _BLOCK.findall(text):
        exec(compile(code, "order.md", "exec"), found)
    return found


def test_vectors_are_what_the_package_gives() -> None:
    """A change of any of them is a change of what is served: it needs another algorithm."""
    made = runpy.run_path(str(FIXTURES / "make_vectors.py"))
    assert made["vectors"]() == (FIXTURES / "vectors.json").read_text("ascii")


def test_every_section_has_vectors() -> None:
    """No section is empty, and integers that a double does not hold are strings."""
    sections = {name: vectors for name, vectors in VECTORS.items() if isinstance(vectors, list)}
    assert len(sections) >= 19
    assert all(sections.values())
    numbers: list[str] = []
    json.loads((FIXTURES / "vectors.json").read_text("ascii"), parse_int=numbers.append)
    assert max(map(int, numbers)) < 1 << 53


def ints(values: list[Any]) -> list[Any]:
    """Numbers that stand as strings, as numbers; lists inside are converted too."""
    return [ints(one) if isinstance(one, list) else one and int(one) for one in values]


def key_of(page: dict[str, Any], names: list[Any]) -> Any:
    content, seed, epoch, purpose = names
    return page["key"](content, int(seed), epoch, purpose)


def test_the_page_has_the_keys_and_permutations(page: dict[str, Any]) -> None:
    """Keys, permutations with streams, and their inverses."""
    for v in VECTORS["keys"]:
        assert [list(one) for one in key_of(page, v["key"])] == ints(v["rounds"])
    for v in VECTORS["permutations"]:
        key = key_of(page, v["key"])
        for position, stream, sample in zip(
            *(ints(v[name]) for name in ("positions", "streams", "samples")), strict=True
        ):
            assert page["permute"](position, v["n"], key, stream) == sample
            assert page["permute"](sample, v["n"], key, stream, back=True) == position


def test_the_page_has_the_orders(page: dict[str, Any]) -> None:
    """Blocks, schedules, mixtures, ranks, skip lists and shuffle buffers."""
    names = ("content_id", "seed", "epoch", "purpose")
    blocks = [v for v in VECTORS["blocks"] if v["n"] <= 1000]
    assert len(blocks) >= 8
    for v in blocks:
        order = page["block_order"](v["n"], v["block"], v["window"], *(v[n] for n in names))
        assert order == v["samples"]
    for v in VECTORS["schedules"]:
        drawn = page["schedule"](v["weights"], len(v["positions"]) - 1)
        assert drawn == list(zip(v["sources"], v["numbers"], strict=True))[:-1]
    for v in VECTORS["mixtures"]:
        order = page["mixture"](v["content"], v["samples_of"], v["weights"], v["seed"], v["epoch"])
        deal = page["key"](page["sha256_of"](v["content"]), v["seed"], v["epoch"], "mixture/deal")
        assert order == v["samples"]
        assert page["steps"](order, v["batch_size"], v["dp_size"], v["end"], deal) == v["steps"]
    for v in VECTORS["ranks"]:
        key = key_of(page, v["key"])
        order = [page["permute"](position, v["n"], key) for position in range(v["n"])]
        assert page["steps"](order, v["batch_size"], v["dp_size"], v["end"]) == v["steps"]
    for v in VECTORS["skips"]:
        key = key_of(page, v["key"])
        order = [page["permute"](position, v["n"], key) for position in range(v["n"])]
        assert [sample for sample in order if sample not in v["skip"]] == v["samples"]
    for v in VECTORS["buffers"]:
        args = [v[name] for name in names]
        source = page["block_order"](v["n"], v["block"], 1, *args)
        keys = [
            page["key"](*args[:3], f"{v['purpose']}/buffer {part}") for part in ("slots", "rest")
        ]
        assert page["buffered"](source, v["buffer"], *keys) == v["samples"]


@pytest.mark.parametrize(("dp_size", "end"), [(1, "partial"), (2, "drop"), (3, "pad")])
def test_the_page_has_the_steps_after_a_resume(
    dp_size: int, end: Any, page: dict[str, Any]
) -> None:
    """Rows of a mixture are dealt by the position in the epoch, wherever a pass begins."""
    contents, sizes, weights = ["a" * 64, "b" * 64], [20, 11], [3, 1]
    mixture = WeightedSources([
        WeightedSource(name=content[0], content_id=content, samples=size, weight=weight)
        for content, size, weight in zip(contents, sizes, weights, strict=True)
    ])  # fmt: skip
    order = page["mixture"](contents, sizes, weights, 4, 1)
    deal = page["key"](page["sha256_of"](contents), 4, 1, "mixture/deal")
    steps = page["steps"](order, 2, dp_size, end, deal, start=5)
    for rank in range(dp_size):
        sampler = GlobalBatchSampler(
            31, 2, order=mixture.order(seed=4), dp_rank=rank, dp_size=dp_size, end=end
        )
        served = [step.samples.tolist() for step in sampler.steps(1, 5)]
        assert served == [
            [PADDING if row is None else row for row in step[rank]] for step in steps
        ]  # fmt: skip


def test_the_page_has_the_arithmetic(page: dict[str, Any]) -> None:
    """Weights in whole numbers, and what the workers of a stream read."""
    for v in VECTORS["weights"]:
        given = [float(one) if "." in one or "e" in one else int(one) for one in v["weights"]]
        assert page["whole_weights"](given) == v["whole"]
        assert sum(v["whole"]) == v["period"]
    for v in VECTORS["streams"]:
        args = [v[name] for name in ("samples", "dp_size", "workers", "batch_size", "end")]
        assert [[list(run) for run in rank] for rank in page["runs"](*args)] == v["runs"]


def test_the_page_has_the_buckets(page: dict[str, Any]) -> None:
    """Samples of like length: blocks of a batch, and steps of as many tokens as fit."""
    for v in VECTORS["buckets"]:
        names, n = v["key"], len(v["lengths"])
        shuffle = key_of(page, names)
        order = [page["permute"](position, n, shuffle) for position in range(n)]
        key = key_of(page, [*names[:3], f"{names[3]}/buckets"])
        assert page["bucketed"](order, v["lengths"], v["batch"], v["pool"], key) == v["samples"]
    for v in VECTORS["token_budgets"]:
        n, ranks = len(v["lengths"]), v["dp_size"]
        shuffle = key_of(page, v["key"])
        order = [page["permute"](position, n, shuffle) for position in range(n)]
        limits = v["max_tokens"] * ranks, v["max_rows"] * ranks, v["rows_multiple"], v["pool"]
        budget_key = key_of(page, v["budget_key"])
        steps, last = page["budget_steps"](order, v["lengths"], *limits, budget_key)
        if v["end"] != "drop":
            steps.append(last)
        served = [[[s for s in part if s is not None] for part in step] for step in v["steps"]]
        assert [[s for part in step for s in part] for step in served] == steps
        assert all(
            part == step[len(step) * rank // ranks : len(step) * (rank + 1) // ranks]
            for step, parts in zip(steps, served, strict=True) for rank, part in enumerate(parts)
        )  # fmt: skip


def test_the_page_has_what_callers_bring(page: dict[str, Any]) -> None:
    """Rows through a buffer, and the parts of a dataset."""
    for v in VECTORS["row_buffers"]:
        rows = list(range(v["rows"]))
        drawn = page["row_buffer"](rows, v["buffer"], v["seed"], v["epoch"])
        assert (rows if v["buffer"] < 2 else drawn) == v["served"]
    for v in VECTORS["parts"]:
        key = page["key"]("split", v["seed"], 0, "split")
        order = [page["permute"](position, v["n"], key) for position in range(v["n"])]
        assert order == [*v["train"], *v["val"]]


def test_the_page_has_the_digests(page: dict[str, Any]) -> None:
    """What each sample adds, and the sum."""
    for v in VECTORS["digests"]:
        parts = [
            page["contribution"](sample, position, v["epoch"], v["content"])
            for sample, position in zip(v["samples"], v["positions"], strict=True)
        ]
        assert parts == ints(v["contributions"])
        assert f"{sum(parts) % page['WORD']:016x}" == v["digest"]


@pytest.mark.parametrize("name", ["windows", "documents", "mixture"])
def test_the_page_has_the_golden_states(name: str, page: dict[str, Any]) -> None:
    """The digest of a state, and what it calls the sources of a mixture."""
    state = json.loads((FIXTURES / "golden" / "v1" / "states" / f"{name}.json").read_text())[
        "state"
    ]
    order, epoch = state["order"], state["epoch"]
    contents, seed = order["content"], order["seed"]
    if name == "mixture":
        served = page["mixture"](contents, order["samples"], order["weights"], seed, epoch)
        (phase,) = state["phases"]
        for content, size, source in zip(contents, order["samples"], phase["sources"], strict=True):
            definition = {"samples": size, "kind": "full", "seed": seed, "purpose": "mixture/0"}
            assert source == f"{content[:16]}/0/{page['sha256_of'](definition)[:16]}"
        assert order["weights_sha256"] == page["sha256_of"](order["weights"])[:16]
    else:
        key = page["key"](contents[0], seed, epoch, order["kind"])
        n = order["samples"]
        served = [page["permute"](position, n, key) for position in range(n)]
    parts = [
        page["contribution"](sample, position, epoch, contents)
        for position, sample in enumerate(served[: state["position"]])
    ]
    assert state["order_digest"] == f"{sum(parts) % page['WORD']:016x}"
    assert parts


def test_the_page_names_every_field_of_a_definition() -> None:
    """Those of all golden states."""
    text = (REPOSITORY / "docs" / "order.md").read_text(encoding="utf-8")
    states = text.partition("\n## States\n")[2].partition("\n## When data change\n")[0]
    fields: set[str] = set()
    for file in (FIXTURES / "golden" / "v1" / "states").glob("*.json"):
        state = json.loads(file.read_text())["state"]
        order = state["order"] if "order" in state else state["definition"]
        fields |= {*state, *order, *order.get("steering", ())}
    assert {"steering", "bucket", "global_tokens", "raw", "transform", "purpose", "mode"} <= fields
    assert {name for name in fields if f"`{name}`" not in states} == set()


def test_the_page_has_the_hidden_tokens(page: dict[str, Any]) -> None:
    """Row seeds and the draws of a masked language model."""
    for v in VECTORS["masked_rows"]:
        ordinary = [i for i in range(v["vocab_size"]) if i not in (*v["special_ids"], v["mask_id"])]
        for number, row in enumerate(v["rows"]):
            seed = page["row_seed"](v["seed"], v["epoch"], v["samples"][number])
            assert seed == int(v["row_seeds"][number])
            marked = v["labels_before"][number]
            first = next(place for place, label in enumerate(marked) if label != -100)
            for place, token in enumerate(row):
                at = (v["mask_seed"], seed, place - first)
                free = marked[place] != -100 and token in ordinary
                hidden = free and page["u"](*at, 1) < v["probability"]
                assert v["labels"][number][place] == (token if hidden else -100)
                share = page["u"](*at, 2)
                other = (
                    ordinary[page["word"](*at, 3) % len(ordinary)] if share < 0.8 + 0.1 else token
                )
                shown = (v["mask_id"] if share < 0.8 else other) if hidden else token
                assert v["input_ids"][number][place] == shown
