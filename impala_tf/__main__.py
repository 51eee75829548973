"""python -m impala_tf: does what the command `impala` does."""

import sys

from impala_tf.main import main

if __name__ == "__main__":
    sys.exit(main())
