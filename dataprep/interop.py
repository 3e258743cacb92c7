"""Conversion between dataprep and the formats of other systems, and detection of these formats."""

from __future__ import annotations

from dataprep.pipeline.interop.convert import ConvertReport, convert
from dataprep.pipeline.interop.detect import detect

__all__ = ["ConvertReport", "convert", "detect"]
