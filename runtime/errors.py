"""Error about one sample of a batch: its row, its field, and what to do.

A collate function gets a list of samples without their numbers in the dataset. So the error names
the row of the batch. `dataprep.runtime.external.map_dataset.Collated` replaces the row by the
number of the sample.
"""

from __future__ import annotations

from dataprep.formats.errors import InputError

__all__ = ["SampleError"]


class SampleError(InputError):
    """Error about a sample that cannot be put into a batch.

    `row` is the index of the sample in the batch, from 0.

    >>> print(SampleError("is empty", row=3, field="labels", remedy="Leave it out."))
    error[E_SAMPLE] row 3 of the batch, field 'labels': is empty. Leave it out.
    """

    default_code = "E_SAMPLE"

    def __init__(
        self,
        problem: str,
        *,
        row: int | None = None,
        field: str | None = None,
        where: str | None = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        self.row = row
        self.field = field
        location = where if where is not None else _location(f"row {row} of the batch", row, field)
        super().__init__(problem, where=location, remedy=remedy, code=code)

    def at_sample(self, sample: int) -> SampleError:
        """Return a copy of this error that names sample `sample` of the dataset, not the row."""
        location = _location(f"sample {sample}", self.row, self.field)
        return SampleError(self.problem, where=location, remedy=self.remedy, code=self.code)


def _location(name: str, row: int | None, field: str | None) -> str | None:
    parts = [name] * (row is not None) + [f"field {field!r}"] * (field is not None)
    return ", ".join(parts) or None
