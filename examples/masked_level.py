"""A level that forbids actions: tic-tac-toe against an opponent who plays at random.

    cd examples
    impala train --level_name=masked_level:TicTacToe --total_environment_frames=100000 \
        --info_metrics=forbidden --logdir=../runs/tic_tac_toe

A move to a square that is taken would lose the game. The part `action_mask` of an observation says
which squares are free, and an agent takes no other one: the column info/forbidden stays 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe(gymnasium.Env[dict[str, np.ndarray], int]):
    """The agent begins. A win is worth 1, a defeat -1."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            {"board": Box(-1.0, 1.0, (9,), np.float32), "action_mask": Box(0, 1, (9,), np.int8)}
        )
        self.action_space = Discrete(9)
        self._board = np.zeros(9, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Clears the board."""
        super().reset(seed=seed)
        self._board[:] = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Puts the agent's mark on a square, and then the opponent's on a free one."""
        forbidden = bool(self._board[action])
        reward, ended = -1.0, forbidden
        for player, square in ((1, action), (-1, None)):
            if not ended:
                free = np.flatnonzero(self._board == 0)
                self._board[self.np_random.choice(free) if square is None else square] = player
                won = any(self._board[list(line)].sum() == 3 * player for line in _LINES)
                reward, ended = player * float(won), won or not (self._board == 0).any()
        return self._observation(), reward, ended, False, {"forbidden": float(forbidden)}

    def _observation(self) -> dict[str, np.ndarray]:
        return {"board": self._board.copy(), "action_mask": (self._board == 0).astype(np.int8)}
