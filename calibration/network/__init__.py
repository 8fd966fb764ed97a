"""Collectives on links, fitted to tables of measurements."""
