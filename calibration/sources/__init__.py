"""Importers: one file per foreign format, each returning rows of `predictor.schema`."""
