"""Open peers beside reckon: what PyPI has of them, on the same rows, on the same machine."""
