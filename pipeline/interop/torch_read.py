"""`.pt` files of others: tensors as rows that are mapped, lists of numbers; no code is ever run.

``torch.load(weights_only=True, mmap=True)`` is the only reader: its unpickler knows tensors and
plain containers and refuses everything else. Before it runs, the archive must be one that
torch.save writes: uncompressed, so that nothing in it is larger than the file; afterwards a tensor
must have no more bytes than the file. A tensor costs no memory until its rows are read; a list
costs what Python's lists and ints cost, about 40 bytes a number.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import BFLOAT16

from .columns import Column

if TYPE_CHECKING:
    import torch

__all__ = ["open_tensor", "read_lists", "require_lists"]

_AGAIN = "Restore this file, or save it again with torch.save."
_LIST_GROWTH = 64  # a list that stands for many rows is stored once; a bomb would be one, too
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_DTYPES = {
    "float32": "<f4", "float16": "<f2", "bfloat16": BFLOAT16, "float64": "<f8", "int8": "|i1",
    "uint8": "|u1", "bool": "|b1", "int32": "<i4", "int64": "<i8", "uint64": "<u8",
}  # fmt: skip
Ids = npt.NDArray[np.int64]


def open_tensor(path: Path) -> Column:
    """The tensor in `path`, mapped; raises `InputError` for anything else."""
    import torch

    value = _load(path)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise _not_it(path, f"expected a tensor, found {_described(value)}")
    dtype = _DTYPES.get(str(value.dtype).removeprefix("torch."))
    if dtype is None:
        raise _not_it(path, f"expected numbers of a plain type, found {value.dtype}")
    if value.dim() == 0:
        raise _not_it(path, "expected rows, found a single number")
    if value.numel() * value.element_size() > path.stat().st_size:  # strides of 0
        raise _not_it(path, f"its shape {list(value.shape)} needs more bytes than the file has")
    tensor = value.detach()
    return Column(
        file=path.name, dtype=dtype, shape=tuple(value.shape),
        read=lambda start, stop: _numbers(tensor[start:stop]),
    )  # fmt: skip


def _numbers(rows: torch.Tensor) -> npt.NDArray[Any]:
    import torch

    if rows.dtype == torch.bfloat16:
        return rows.contiguous().view(torch.int16).numpy().view("<u2")
    return np.ascontiguousarray(rows.resolve_conj().numpy())


def read_lists(path: Path) -> tuple[Ids, Ids]:
    """The list of lists of whole numbers in `path`: offsets [rows + 1] and numbers [total]."""
    return require_lists(_load(path), path.name, path.stat().st_size)


def require_lists(value: Any, file: str, size: int) -> tuple[Ids, Ids]:
    """`value` from a file of `size` bytes as offsets and numbers, if it is lists of whole numbers.

    >>> require_lists([[5, 2], [], [7]], "pair_keyword_ids.pt", 100)
    (array([0, 2, 2, 3]), array([5, 2, 7]))
    """
    if not isinstance(value, list) or not {*map(type, value)} <= {list, tuple}:
        raise _not_lists(file, f"expected a list of lists, found {_odd(value, list, tuple)}")
    offsets = np.zeros(len(value) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, value), np.int64, len(value)), out=offsets[1:])
    total = int(offsets[-1])
    if total > _LIST_GROWTH * max(size, 1):
        raise _not_lists(file, f"its lists have {total} numbers, too many for {size} bytes")
    if not {*map(type, itertools.chain.from_iterable(value))} <= {int}:
        row = next(i for i, one in enumerate(value) if not {*map(type, one)} <= {int})
        raise _not_lists(file, f"list {row}: expected whole numbers, found {_odd(value[row], int)}")
    try:
        numbers = np.fromiter(itertools.chain.from_iterable(value), np.int64, total)
    except OverflowError:
        raise _not_lists(file, "a number is too large for 64 bits") from None
    return offsets, numbers


def _odd(value: Any, *wanted: type) -> str:
    """What `value` is or holds that is none of `wanted`."""
    if not isinstance(value, list | tuple):
        return _described(value)
    return _described(next(one for one in value if type(one) not in wanted))


def _described(value: Any) -> str:
    return f"a {type(value).__name__}"


def _load(path: Path) -> Any:
    import torch

    with open_ordinary(path, path.name) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise _not_it(path, "is empty")
    with decoding(path.name, ".pt file", code="E_LAYOUT", remedy=_AGAIN):
        _require_plain(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise _unsafe(path, error) from None


def _require_plain(path: Path) -> None:
    """Raise unless `path` is an archive without compression."""
    if not zipfile.is_zipfile(path):
        raise InputError(
            "is not an archive as torch.save has written it since torch 1.6", where=path.name,
            code="E_PICKLE",
            remedy=_rewrite(path, "torch.load(f, weights_only=True)", "Rewrite it"),
        )  # fmt: skip
    with zipfile.ZipFile(path) as archive:
        packed = [one.filename for one in archive.infolist() if one.compress_type]
    if packed:
        raise _not_it(path, f"{packed[0]!r} in it is compressed, which torch.save never does")


def _unsafe(path: Path, error: pickle.UnpicklingError) -> InputError:
    """A pickle that asks for more than data."""
    found = _GLOBAL.search(str(error))
    asked = found[1].rstrip(".") if found else "code to run"
    if path.name == "pair_keyword_ids.pt":
        plain = "[[int(i) for i in r] for r in torch.load(f, weights_only=False)]"
    else:
        plain = "torch.as_tensor(torch.load(f, weights_only=False))"
    trust = "Loading it could run anything: only if you trust who made it, rewrite it as plain data"
    return InputError(
        f"is a pickle that asks for more than plain data ({asked}), and is not loaded",
        where=path.name, code="E_PICKLE", remedy=_rewrite(path, plain, trust),
    )  # fmt: skip


def _rewrite(path: Path, expression: str, why: str) -> str:
    return f'{why}: python -c "import torch; f = {str(path)!r}; torch.save({expression}, f)"'


def _not_lists(file: str, problem: str) -> InputError:
    return InputError(
        problem, where=file, code="E_LAYOUT",
        remedy="It holds, for each pair, the list of its keyword ids: save it with torch.save.",
    )  # fmt: skip


def _not_it(path: Path, problem: str) -> InputError:
    return InputError(problem, where=path.name, code="E_LAYOUT", remedy=_AGAIN)
