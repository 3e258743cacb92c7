"""Order: which sample stands at which position, as pure functions without state."""
