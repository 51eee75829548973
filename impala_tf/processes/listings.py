"""`impala levels` and `impala agents`: what can be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from impala_tf.config import AGENTS, ConfigError, command_line
from impala_tf.environments import suites
from impala_tf.printable import columns


def main(name: str, arguments: Sequence[str]) -> int:
    """Prints the list of levels or agents; returns 0. Raises ConfigError: wrong words."""
    if len(arguments) > (name == "levels"):
        raise ConfigError(f"{name} {' '.join(arguments)}: too many words; see impala --help")
    command_line.print_for_reader(levels(*arguments) if name == "levels" else agents())
    return 0


def levels(part: str = "") -> str:
    """Returns the levels whose names contain a text, in any case, or the levels of a list."""
    sections: list[str] = []
    lists: list[str] = []
    for suite in suites.SUITES:
        installed = list(suite.installed())
        lists += suite.lists
        if (members := suite.lists.get(part.lower())) is not None:
            here = len(set(members).intersection(installed))
            about = f"{suite.about} ({here} of {len(members)} levels are installed)"
            return "\n".join([f"{about}:", *(f"  {member}" for member in members)])
        names = [name for name in installed if part.lower() in name.lower()]
        if names:
            sections.append("\n".join([f"{suite.about}:", *(f"  {name}" for name in names)]))
    if not sections:
        raise ConfigError(f"levels {part}: no level that is installed has this in its name")
    about = f"One agent learns all levels of a list; impala levels {lists[0]} shows them."
    return "\n\n".join([*sections, f"Lists for --level_name: {', '.join(lists)}. {about}"])


def agents() -> str:
    """Returns a table of the networks."""
    rows = [("--agent_name", "torso", "core", "sees the last action and reward")]
    for name, agent in AGENTS.items():
        sees = "yes" if agent.observes_last_action_and_reward else "no"
        rows.append((name, agent.torso.name, agent.core, sees))
    return f"{columns(rows)}\n--core=lstm gives any of them an LSTM, --core=feedforward none."
