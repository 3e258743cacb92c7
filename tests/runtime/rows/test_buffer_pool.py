"""Buffers come back when nobody holds them, and never before."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.runtime.rows.buffer_pool import Buffers
from tests.support import examples

LARGE = (1 << 14,)  # 128 KiB of int64


def place(array: np.ndarray | torch.Tensor) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


@examples(25)
@given(steps=st.lists(st.integers(-6, 3), max_size=20))
def test_what_is_held_is_never_handed_out_again(steps: list[int]) -> None:
    """Whatever is taken and dropped in whatever order, what is held keeps its content."""
    buffers, held = Buffers(), list[tuple[torch.Tensor, int]]()
    for number, step in enumerate(steps):
        if step < 0 or not held:
            tensor = torch.from_numpy(buffers.empty(LARGE)).fill_(number)
            # A view of a view, of numpy or torch, holds the memory as well as the tensor does.
            held.append((tensor[5:][:1] if step % 2 else torch.from_numpy(tensor.numpy()), number))
        else:
            held.pop(step % len(held))
        assert all(int(tensor[-1]) == wanted for tensor, wanted in held)


def test_memory_is_used_again() -> None:
    """A loop that drops its batches lives in the same buffers."""
    buffers, places = Buffers(), set[int]()
    for _ in range(20):
        places |= {place(torch.from_numpy(buffers.empty(LARGE))) for _ in range(2)}
    assert len(places) <= 2


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[3:],
        lambda array: array[1:][1:].reshape(-1)[1:].view(np.uint8).view(np.int64),
        lambda array: np.asarray(array).reshape(-1, 2).T[0],
        lambda array: torch.from_numpy(array[3:]),
        lambda array: torch.from_numpy(array.reshape(2, -1)).numpy()[1],
        lambda array: memoryview(array)[3:],
    ],
    ids=["slice", "views of views", "reshaped", "tensor of a slice", "array of it", "memory"],
)
def test_a_view_keeps_the_buffer(view: Callable[[Any], Any]) -> None:
    """A view of numpy's holds the memory as well, when the array that it was taken of is gone."""
    buffers = Buffers()
    array = buffers.empty(LARGE)
    at, held = place(array), view(array)
    del array
    assert place(buffers.empty(LARGE)) != at
    del held
    assert at in {place(array) for array in [buffers.empty(LARGE) for _ in range(2)]}


def test_shapes_and_types_share_a_size() -> None:
    """Memory is lent by size: another shape or type of as many bytes takes it up."""
    buffers = Buffers()
    first = place(buffers.empty((256, 512)))
    again = buffers.empty((512, 512), np.int32)
    assert (place(again), again.shape) == (first, (512, 512))
    assert again.dtype == np.int32
    assert again.flags.c_contiguous and again.flags.writeable


def test_only_a_few_free_buffers_are_kept() -> None:
    """Thirty batches that were held together do not stay behind."""
    buffers = Buffers()
    held = [buffers.empty(LARGE) for _ in range(30)]
    held.clear()
    kept = {place(array) for array in [buffers.empty(LARGE) for _ in range(8)]}
    assert len(kept) == 8
    assert sum(map(len, buffers._free.values())) <= 8
    for size in range(100):
        buffers.empty((LARGE[0] + size,))
    assert len(buffers._free) <= 8


def test_threads_never_share_a_buffer() -> None:
    """Four threads that fill and check theirs find nothing of another's."""
    buffers, wrong = Buffers(), list[int]()

    def work(number: int) -> None:
        for _ in range(200):
            array = buffers.empty(LARGE)
            array[::4096] = number
            if (array[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_pickles_empty() -> None:
    """Nothing of the memory travels to another process."""
    buffers = Buffers()
    held = buffers.empty(LARGE)
    assert len(pickle.dumps(buffers)) < 200
    assert pickle.loads(pickle.dumps(buffers)).empty(LARGE).shape == held.shape


def test_the_end_of_the_interpreter_is_quiet() -> None:
    """Buffers that are still held then say nothing."""
    code = "from dataprep.runtime.rows.buffer_pool import Buffers; b = Buffers(); "
    code += "h = [b.empty((1 << 20,))]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
