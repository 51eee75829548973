"""run_experiment.py with changed constants: patched_run.py '{"module.NAME": 1}' FLAGS."""

from __future__ import annotations

import importlib
import json
import sys


def main() -> int:
    """Sets the constants of the first argument, then runs with the flags that follow."""
    import run_experiment

    for path, value in json.loads(sys.argv.pop(1)).items():
        module_name, _, name = path.rpartition(".")
        module = importlib.import_module(module_name)
        assert hasattr(module, name), f"no such constant: {path}"
        setattr(module, name, value)
    return run_experiment.main()


if __name__ == "__main__":
    sys.exit(main())
