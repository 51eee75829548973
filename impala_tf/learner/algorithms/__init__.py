"""The losses, one small file per algorithm."""
