"""Computation on one worker beyond single functions of torch."""
