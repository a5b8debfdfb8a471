"""Run a plan on the blocks of this rank."""
