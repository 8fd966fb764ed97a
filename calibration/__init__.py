"""Fits efficiencies and run parameters to measurements, checks them, and stores them."""
