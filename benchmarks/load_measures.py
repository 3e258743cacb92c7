"""Measures of benchmarks/load.py, each run in a separate process; prints one line of JSON.

    python benchmarks/load_measures.py MEASURE '{"dataset": ..., "batch": 32, "seq": 2048, ...}'

Imports are not part of any figure. torch runs with one thread.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.create import create_loader
from dataprep.runtime.specs import Packed, Windows

Figures = dict[str, Any]
SETTLE = 20  # batches that are taken first, as in the harness of the peers


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


_OF_ROWS = ("labels", "position_ids", "cu_seqlens")
_SPECS = {"windows": Windows, "packed": Packed}


def make(dataset: str, batch: int, seq: int, options: Figures) -> Any:
    others = dict(options)
    own = {name: others.pop(name) for name in _OF_ROWS if name in others}
    spec = _SPECS[others.pop("rows", "windows")](seq, **own)
    if "dtype" in others:
        others["dtype"] = getattr(torch, others["dtype"])
    opened = open_dataset(dataset, io=others.pop("io", None))
    return create_loader(opened, "train", batch, rows=spec, **others)


def copies(batch: int, seq: int) -> Iterator[torch.Tensor]:
    """Measure the ceiling as the harness of the peers does: one int64 batch copied per step."""
    source = torch.randint(0, 50_000, (64, batch, seq + 1))
    return (torch.empty_like(source[0]).copy_(source[i % 64]) for i in itertools.count())


def floor(dataset: str, like: dict[str, torch.Tensor]) -> Iterator[Figures]:
    """Make batches of the shapes and types of `like` by bare copies, everything known in advance.

    Random windows of an array in memory are gathered and widened into fixed buffers; all tensors
    but the ids and labels are copied from arrays that are there. No loader can do less.
    """
    out = {name: np.empty_like(tensor.numpy()) for name, tensor in like.items()}
    known = {name: like[name].numpy().copy() for name in out if name not in ("input_ids", "labels")}
    batch, seq = like["input_ids"].shape
    for ids in _gathered(dataset, batch, seq + ("labels" in out)):
        np.copyto(out["input_ids"], ids[:, :seq])
        if "labels" in out:
            np.copyto(out["labels"], ids[:, 1:])
        for name, array in known.items():
            np.copyto(out[name], array)
        yield out


def _gathered(dataset: str, batch: int, span: int) -> Iterator[Any]:
    """Yield random windows [batch, span] of an array in memory, in the stored dtype."""
    with open_dataset(dataset) as opened:
        split = opened.split("train")
        tokens = split.read(0, split.tokens)
    item, count = tokens.itemsize, len(tokens) - span + 1
    windows = np.ndarray((count,), f"V{span * item}", tokens, 0, (item,))
    starts = np.random.default_rng(0).integers(0, count, (1000, batch))
    for turn in itertools.count():
        yield windows[starts[turn % 1000]].view(tokens.dtype).reshape(batch, span)


def throughput(
    dataset: str, batch: int, seq: int, seconds: float, rounds: int, options: Figures
) -> Figures:
    """Measure loader and memory copy in turn, then loader and floor; ratios are medians.

    The floor comes after the peak of memory was read, as it holds all tokens.
    """
    began = time.perf_counter()
    batches = forever(make(dataset, batch, seq, options))
    like = next(batches)
    first = time.perf_counter() - began
    for _ in range(SETTLE):
        next(batches)
    turns = [seconds / rounds] * rounds
    copy, loader = _in_turn(copies(batch, seq), batches, turns)
    peak = _status("VmHWM")
    least, beside = _in_turn(floor(dataset, like), batches, turns)
    scale = batch * seq / 1e6
    return {
        "mtok_s": round(statistics.median(loader) * scale),
        "copy_mtok_s": round(statistics.median(copy) * scale),
        "of_copy": _ratio(loader, copy),
        "floor_mtok_s": round(statistics.median(least) * scale),
        "of_floor": _ratio(beside, least),
        "first_ms": round(first * 1e3, 1),
        "peak_mib": round(peak),
    }


def types_of_ids(
    dataset: str, batch: int, seq: int, seconds: float, rounds: int, options: Figures
) -> Figures:
    """Measure the same batches as int64 and as int32 in turn, then the floors of both in turn."""
    names = ("int64", "int32")
    loaders = [forever(make(dataset, batch, seq, options | {"dtype": name})) for name in names]
    likes = [[next(batches) for _ in range(SETTLE)][-1] for batches in loaders]
    turns = [seconds / rounds] * rounds
    wide, narrow = _in_turn(*loaders, turns)
    least = _in_turn(*(floor(dataset, like) for like in likes), turns)
    scale = batch * seq / 1e6
    return {
        "int64_mtok_s": round(statistics.median(wide) * scale),
        "int32_mtok_s": round(statistics.median(narrow) * scale),
        "ratio": _ratio(narrow, wide),
        "floor_ratio": _ratio(least[1], least[0]),
    }


def _in_turn(
    one: Iterator[Any], other: Iterator[Any], turns: list[float]
) -> tuple[list[float], list[float]]:
    """Return steps per second of both in each turn of so many seconds."""
    rates = [(_rate(one, seconds), _rate(other, seconds)) for seconds in turns]
    return [a for a, _ in rates], [b for _, b in rates]


def _ratio(ours: list[float], other: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, other, strict=True)), 3)


def _rate(steps: Iterator[Any], seconds: float) -> float:
    """Return steps per second."""
    next(steps)
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        next(steps)
        count += 1
    return count / passed


def served(
    dataset: str, batch: int, seq: int, seconds: float, options: Figures, harness: str | None = None
) -> Figures:
    """Count tokens of the first seconds, of our loader or of the harness's hand-written one."""
    began = time.perf_counter()
    if harness is None:
        batches = forever(make(dataset, batch, seq, options))
    else:
        batches = _load(harness).naive_dataset(dataset, "", seq, batch, 0)
    count = 0
    while (passed := time.perf_counter() - began) < seconds:
        next(batches)
        count += 1
    return {"mtok_s": round(count * batch * seq / passed / 1e6, 2)}


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("harness", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place(dataset: str, batch: int, seq: int, position: int, options: Figures) -> Figures:
    """Return the state of a run at `position`; in a separate process, for its memory."""
    return {**make(dataset, batch, seq, options).state_dict(), "position": position}


def start(
    dataset: str, batch: int, seq: int, options: Figures, state: Figures | None = None
) -> Figures:
    """Measure opening, resuming at `state` and the first batch: time and memory."""
    gc.collect()  # 65 ms of torch's objects, due sometime after the import: not ours
    before = _status("VmHWM")
    began = time.perf_counter()
    loader = make(dataset, batch, seq, options)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    passed = time.perf_counter() - began
    return {
        "samples": len(loader.dataset_obj),
        "ms": round(passed * 1e3, 1),
        "mib_above_imports": round(_status("VmHWM") - before, 1),
    }


def beside_steps(
    dataset: str, batch: int, seq: int, step_ms: float, rounds: int, options: Figures
) -> Figures:
    """Run a loop of computing steps, with the loader and with one constant batch.

    And with the loader's `mock=True`, which serves batches from memory, and with a thread that does
    nothing but copy as many tokens as the loader does: what that slows the step down is the price
    of memory that two processors share, and no loader is below it. `loader_cpu_ms` is the processor
    time of all threads that a step takes more with the loader than with the constant batch.
    """
    batches = forever(loader := make(dataset, batch, seq, options))
    mock = forever(make(dataset, batch, seq, {**options, "mock": True}))
    same = itertools.repeat(next(batches))
    next(bare := _bare(dataset, batch, seq))  # all tokens are in memory from here on
    step = _step(step_ms / 1e3)
    waited = -loader.stats().waited_s
    order = (same, batches, bare, mock)
    runs = [[_loop(steps, step) for steps in order] for _ in range(rounds)]
    waited += loader.stats().waited_s

    def slower(which: int, than: int = 0) -> float:
        ratios = [run[which][0] / run[than][0] for run in runs]
        return round(100 * (statistics.median(ratios) - 1), 2)

    return {
        "step_ms": round(statistics.median(run[1][0] for run in runs) / 100 * 1e3, 2),
        "slower_percent": slower(1),
        "slower_than_mock_percent": slower(1, 3),
        "bare_copies_slower_percent": slower(2),
        "loader_cpu_ms": round(statistics.median(10 * (run[1][1] - run[0][1]) for run in runs), 3),
        "waited_percent": round(100 * waited / sum(run[1][0] for run in runs), 3),
    }


def _bare(dataset: str, batch: int, seq: int) -> Iterator[Any]:
    """Make random windows of an array in memory, and their two tensors, by numpy in a thread."""
    gathered = _gathered(dataset, batch, seq + 1)
    ready: SimpleQueue[Any] = SimpleQueue()
    wanted: SimpleQueue[bool] = SimpleQueue()

    def work() -> None:
        for out in itertools.cycle([np.empty((2, batch, seq), np.int64) for _ in range(4)]):
            wanted.get()
            ids = next(gathered)
            np.copyto(out[0], ids[:, :-1])
            np.copyto(out[1], ids[:, 1:])
            ready.put(out)

    threading.Thread(target=work, daemon=True).start()
    for _ in range(2):
        wanted.put(True)
    while True:
        made = ready.get()
        wanted.put(True)
        yield made


def _step(seconds: float) -> Callable[[], object]:
    """Return the number of matrix products that take this long."""
    matrix = torch.rand(256, 256)
    torch.mm(matrix, matrix)
    began = time.perf_counter()
    for _ in range(100):
        torch.mm(matrix, matrix)
    count = max(1, round(seconds * 100 / (time.perf_counter() - began)))
    return lambda: [torch.mm(matrix, matrix) for _ in range(count)]


def _loop(batches: Iterator[Any], step: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock and the processor seconds of 100 steps."""
    began, used = time.perf_counter(), time.process_time()
    for _ in range(100):
        next(batches)
        step()
    return time.perf_counter() - began, time.process_time() - used


def state(dataset: str, batch: int, seq: int, options: Figures) -> Figures:
    """Measure the time to take and to load a state, and its size."""
    loader = make(dataset, batch, seq, options)
    batches = iter(loader)
    taken, loaded = [], []
    for _ in range(200):
        next(batches)
        began = time.perf_counter()
        found = loader.state_dict()
        taken.append(time.perf_counter() - began)
    del batches
    for _ in range(200):
        began = time.perf_counter()
        loader.load_state_dict(found)
        loaded.append(time.perf_counter() - began)
    return {
        "state_dict_us": round(statistics.median(taken) * 1e6, 1),
        "load_state_dict_us": round(statistics.median(loaded) * 1e6, 1),
        "bytes": len(json.dumps(found)),
    }


def read_through(dataset: str) -> Figures:
    """Bring the tokens into the page cache."""
    with open_dataset(dataset) as opened:
        split = opened.split("train")
        for at in range(0, split.tokens, 1 << 24):
            split.read(at, min(at + (1 << 24), split.tokens))
    return {}


def _status(name: str) -> float:
    """Return a line of /proc/self/status, in MiB."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


MEASURES: dict[str, Callable[..., Figures]] = {
    found.__name__: found
    for found in (throughput, types_of_ids, served, place, start, beside_steps, state, read_through)
}


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(MEASURES[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
