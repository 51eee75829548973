"""The learner: algorithms, the update, the training loop, and the group of learners."""
