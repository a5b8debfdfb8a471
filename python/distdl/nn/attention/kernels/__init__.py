"""Attention on one worker."""
