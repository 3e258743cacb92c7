"""Detection of datasets in the formats of other systems, and conversion from and to them."""

from __future__ import annotations

from dataprep.pipeline.interop.convert import ConvertReport, convert
from dataprep.pipeline.interop.detect import detect

__all__ = ["ConvertReport", "convert", "detect"]
