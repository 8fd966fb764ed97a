"""Times real kernels, collectives and training steps on the device at hand, with PyTorch."""
