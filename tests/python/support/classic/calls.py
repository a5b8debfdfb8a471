"""A call of everything that programs written for DistDL know, with its result. Classic mode is on."""

from support.classic import helpers, layers, partitions, primitives

CALLS = {**helpers.CALLS, **partitions.CALLS, **primitives.CALLS, **layers.CALLS}
"""By name: functions of the partition of all ranks, which raise where the result is wrong."""
