"""Plays whole games with a trained agent, and makes videos of them."""
