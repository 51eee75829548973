"""Checkpoints that are complete or absent, and which runs they fit."""
