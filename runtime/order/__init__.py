"""Orders of samples: pure functions that map positions of an epoch to samples."""
