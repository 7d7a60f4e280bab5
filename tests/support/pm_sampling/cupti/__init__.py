"""cupti-python's stand-in."""
