"""python -m impala_tf: does what the command `impala` does."""

from impala_tf.main import program

if __name__ == "__main__":
    program()
