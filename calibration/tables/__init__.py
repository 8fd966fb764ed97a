"""Tables of measurements as arrays: kernels, training runs, requests, a sweep, profiles."""
