"""The analytical model: workloads, kernels, collectives, memory, schedules, training."""
