"""Foreign data: map-style and iterable datasets that dataprep did not build, behind a loader."""
