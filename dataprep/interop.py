"""Other systems' formats: detection and conversion, both ways."""

from __future__ import annotations

from dataprep.pipeline.interop.convert import ConvertReport, convert
from dataprep.pipeline.interop.detect import detect

__all__ = ["ConvertReport", "convert", "detect"]
