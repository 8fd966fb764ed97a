"""Fits constants of power to measured power, and predicts the rows of power tables."""
