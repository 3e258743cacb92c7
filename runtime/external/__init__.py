"""Data that dataprep did not build: any map-style or iterable dataset behind a loader."""
