"""`.pt` files written by other programs: tensors and plain data, read without running any code.

Files are read only by ``torch.load(weights_only=True, mmap=True)``, whose unpickler builds tensors
and plain containers and refuses everything else. The archive must be uncompressed, as torch.save
writes it. Tensors are memory-mapped, so they take no memory until their rows are read. The function
`rows_problem` reports a tensor that has more bytes than the file.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import BFLOAT16

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "load", "numbers_of", "rewriting", "rows_problem"]

DTYPES: Mapping[str, str] = {
    "torch.float64": "<f8", "torch.float32": "<f4", "torch.float16": "<f2",
    "torch.bfloat16": BFLOAT16, "torch.bool": "|b1", "torch.int64": "<i8", "torch.int32": "<i4",
    "torch.int16": "<i2", "torch.int8": "|i1", "torch.uint8": "|u1", "torch.uint64": "<u8",
}  # fmt: skip
"""numpy's name for each torch dtype that can be read."""

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_AGAIN = "Restore this file, or save it again with torch.save."


def load(path: Path, where: str, *, code: str, trusted: str) -> Any:
    """Return the tensors and plain data in the file `path`. Errors name the file as `where`.

    Raise `InputError` with `code` if torch.save did not write the file. Raise `InputError` with
    ``E_PICKLE`` and the advice `trusted` if the file holds anything but tensors and plain data.
    """
    import torch

    if path.stat().st_size == 0:
        raise InputError("is empty", where=where, code=code, remedy=_AGAIN)
    with decoding(where, ".pt file", code=code, remedy=_AGAIN):
        _require_archive(path, where, code)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            found = _GLOBAL.search(str(error))
            asked = found[1].rstrip(".") if found else "code to run"
            raise InputError(
                f"is a pickle that asks for more than plain data ({asked}), and is not loaded",
                where=where, code="E_PICKLE", remedy=trusted,
            ) from None  # fmt: skip


def _require_archive(path: Path, where: str, code: str) -> None:
    """Raise `InputError` unless `path` is an uncompressed archive, as torch.save writes it."""
    if not zipfile.is_zipfile(path):
        raise InputError(
            "is not an archive as torch.save has written it since torch 1.6", where=where,
            code=code, remedy=rewriting(path, "torch.load(f, weights_only=True)", "Rewrite it"),
        )  # fmt: skip
    with zipfile.ZipFile(path) as archive:
        packed = [one.filename for one in archive.infolist() if one.compress_type]
    if packed:
        raise InputError(
            f"{packed[0]!r} in it is compressed, which torch.save never does", where=where,
            code=code, remedy=_AGAIN,
        )  # fmt: skip


def rewriting(path: Path, expression: str, why: str) -> str:
    """Return advice that begins with `why` and shows a command that saves `expression` to `path`.

    In `expression`, the variable ``f`` is the path.
    """
    return f'{why}: python -c "import torch; f = {str(path)!r}; torch.save({expression}, f)"'


def rows_problem(value: Any, size: int) -> str | None:
    """Return why `value` cannot be used as rows of numbers, or None if it can.

    The value was read from a file of `size` bytes.
    """
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return f"expected a tensor, found a {type(value).__name__}"
    if str(value.dtype) not in DTYPES:
        return f"expected numbers of a plain type, found {value.dtype}"
    if value.dim() == 0:
        return "expected rows, found a single number"
    if value.numel() * value.element_size() > size:  # as with strides of 0
        return f"its shape {list(value.shape)} needs more bytes than the file has"
    return None


def numbers_of(rows: torch.Tensor) -> npt.NDArray[Any]:
    """Return `rows` as a contiguous array. If they are bfloat16, the array is uint16."""
    import torch

    rows = rows.detach().resolve_conj().contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view("<u2")
    return np.asarray(rows.numpy())
