"""sandbox/benchmark_speed.py trains with the flags that it was given."""

from __future__ import annotations

import benchmark_speed
import pytest


@pytest.mark.parametrize(
    ("words", "seconds", "flags"),
    [
        ("", 90.0, []),
        ("30 --num_actors=2", 30.0, ["--num_actors=2"]),
        ("--num_actors 2", 90.0, ["--num_actors=2"]),
        ("30 --num_actors 2 --seed 3", 30.0, ["--num_actors=2", "--seed=3"]),
        ("--no_staggered_resets 30", 30.0, ["--no_staggered_resets"]),
    ],
)
def test_the_value_of_a_flag_is_not_taken_for_seconds(
    words: str, seconds: float, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training for 2 s, and without the flag's value, ends after minutes with no result."""
    trained = []

    def training_steps_per_s(seconds: float, flags: list[str]) -> float:
        trained.append((seconds, flags))
        return 1.0

    monkeypatch.setattr(benchmark_speed, "training_steps_per_s", training_steps_per_s)
    monkeypatch.setattr(benchmark_speed, "emulator_steps_per_s", lambda: 1.0)
    benchmark_speed.main(words.split())
    assert trained == [(seconds, flags)]
