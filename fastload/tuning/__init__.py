"""Measure, model, search: which settings, and why. Knows a workload by what it yields, nothing of fastai."""
