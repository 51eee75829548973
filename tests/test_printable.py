"""Text of others is shown as text, and moves no cursor."""

from __future__ import annotations

import pytest

from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError
from impala_tf.printable import log_printer, printable_parts

EVIL = "\x1b]0;x\x07\x9b2J\u202e\nä\t"


@pytest.mark.parametrize("kind", [ConfigError, ClusterError])
def test_errors_that_quote_others_are_one_harmless_line(kind: type[Exception]) -> None:
    assert str(kind(f"a: {EVIL}b")) in ("a: ?]0;x??2J? ä b", "a: ?]0;x??2J? ä  b")


def test_all_texts_of_json_become_printable() -> None:
    assert printable_parts({EVIL: [EVIL, 1, None]}) == {"?]0;x??2J? ä ": ["?]0;x??2J? ä ", 1, None]}


def test_a_log_keeps_its_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Pieces may end within a letter."""
    show, data = log_printer(), EVIL.encode()
    for at in range(len(data)):
        show(data[at : at + 1])
    assert capsys.readouterr().out == "?]0;x??2J?\nä\t"
