"""Agents: networks composed of a torso, a core and heads, and the policies that act with them."""
