"""YAML documents that engines read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def yaml_text(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML: keys stay in order, texts of several lines are blocks."""
    import yaml  # few commands need it

    class Dumper(yaml.SafeDumper):
        """For people to read."""

        def ignore_aliases(self, data: Any) -> bool:
            """Writes what is there twice in full, twice."""
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    # No width: long flags stay on their line.
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, width=2**20))
