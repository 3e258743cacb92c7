"""`create_preprocessed_dataset`: preprocessing of map-style data or of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dataprep.formats.errors import UsageError

from .map_loader import is_stream
from .preprocess import Engine
from .preprocessed_iterable import StreamingPreprocessedDataset
from .preprocessed_map import PreprocessedDataset, require_map_style

__all__ = ["create_preprocessed_dataset"]

_OF_MAPS = ("cache_enabled", "cache_bytes")
_OF_STREAMS = (
    "buffer_size", "skip_errors", "seed", "infinite", "rank", "world_size", "by_shards"
)  # fmt: skip


def create_preprocessed_dataset(
    hf_dataset: Any,
    prompt_engine: Engine | None = None,
    streaming: bool | None = None,
    *,
    column_mapping: Mapping[str, str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    draws: bool = False,
    **options: Any,
) -> PreprocessedDataset | StreamingPreprocessedDataset:
    """Return a `PreprocessedDataset` for map-style data, or a `StreamingPreprocessedDataset`.

    A Hugging Face `Dataset`, a torch dataset and a list are map-style. An `IterableDataset` of
    Hugging Face or torch, and a function that returns a new iterator each time, are streams. If
    `streaming` is True, map-style data also becomes a stream. If `streaming` is False, a stream
    raises `UsageError`.

    The keyword arguments `options` belong to the class that is returned. An option of the other
    class is ignored if its value is false, and raises `UsageError` otherwise.

    >>> type(create_preprocessed_dataset([{"n": 1}])).__name__
    'PreprocessedDataset'
    >>> type(create_preprocessed_dataset(lambda: iter([{"n": 1}]))).__name__
    'StreamingPreprocessedDataset'
    """
    if isinstance(hf_dataset, Mapping):
        require_map_style(hf_dataset)
    stream = is_stream(hf_dataset)
    if stream and streaming is False:
        raise UsageError(
            f"a {type(hf_dataset).__name__} is a stream, which has no samples by number",
            where="streaming", remedy="Leave it out, or load the data without streaming.",
        )  # fmt: skip
    kind = "stream" if stream or streaming else "map"
    own, other = (_OF_STREAMS, _OF_MAPS) if kind == "stream" else (_OF_MAPS, _OF_STREAMS)
    for name, value in list(options.items()):
        if name in other and not value:  # an option of the other class, turned off
            del options[name]
        elif name not in own:
            raise UsageError(
                f"means nothing for {'streams' if kind == 'stream' else 'samples by number'}"
                if name in other else f"there is no such option, only {', '.join(own)}",
                where=name,
            )  # fmt: skip
    shared: dict[str, Any] = {
        "prompt_engine": prompt_engine, "column_mapping": column_mapping, "transform": transform,
        "draws": draws, **options,
    }  # fmt: skip
    if kind == "map":
        return PreprocessedDataset(hf_dataset, **shared)
    if not stream:
        hf_dataset = _InOrder(hf_dataset)
    return StreamingPreprocessedDataset(hf_dataset, **shared)


class _InOrder:
    """Stream of the samples of a map-style dataset, read by number.

    Iteration uses `len` because the `__iter__` of some datasets never ends.
    """

    def __init__(self, data: Any) -> None:
        require_map_style(data)
        self._data = data

    def __iter__(self) -> Any:
        return (self._data[number] for number in range(len(self._data)))
