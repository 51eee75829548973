"""Composition roots: what an actor, a learner, an evaluation and a local run are made of."""
