"""Efficiencies of kernels, fitted to tables of measurements."""
