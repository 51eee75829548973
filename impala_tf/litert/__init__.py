"""Acting without TensorFlow: learners convert the network once, actors run it with LiteRT."""
