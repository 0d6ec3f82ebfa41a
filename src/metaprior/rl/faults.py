"""What an environment or a policy on the host may get wrong, said with the task and the step where it happened."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Watch:
    """Looks at what T·N trajectories in lock-step give; the first that is wrong is named. Step 0 is the reset."""

    name: str
    observation_size: int
    count: int  # N, the trajectories of a task
    horizon: int

    def observations(
        self, step: int, rows: np.ndarray | Sequence[np.ndarray], alive: np.ndarray | None = None
    ) -> np.ndarray:
        """As one array, [E, O]."""
        for index, row in enumerate(rows[:1] if isinstance(rows, np.ndarray) else rows):
            if np.shape(row) != (self.observation_size,):
                expected, got = f"{self.observation_size} numbers", f"an array of shape {np.shape(row)}"
                self._stop(index, step, f"an observation is to have {expected}, got {got}: mend the environment")
        seen = np.asarray(rows, float)
        counted = np.ones(len(seen), bool) if alive is None else alive
        self._require_finite(step, "observation", seen, np.isfinite(seen).all(axis=1) | ~counted)
        return seen

    def rewards(self, step: int, rewards: np.ndarray) -> np.ndarray:
        """Themselves, [E]."""
        self._require_finite(step, "reward", rewards, np.isfinite(rewards))
        return rewards

    def actions(self, step: int, actions: np.ndarray) -> np.ndarray:
        """Themselves, [E, A]."""
        sound = np.isfinite(actions).all(axis=1)
        if not sound.all():
            told = f"the policy's action is {actions[np.argmin(sound)].tolist()}"
            self._stop(
                int(np.argmin(sound)), step, f"{told}: its weights have diverged, lower the rate of the inner steps"
            )
        return actions

    def ends(self, step: int, alive: np.ndarray) -> np.ndarray:
        """Who goes on, [E]."""
        over = ~alive.reshape(-1, self.count).any(axis=1)
        if step == 1 < self.horizon and over.any():
            told = f"all {self.count} trajectories ended with their first step: there is nothing to learn from"
            raise ValueError(
                f"{self.name}, task {int(np.argmax(over))}, step 1: {told}; look at what the environment calls an end"
            )
        return alive

    def _require_finite(self, step: int, word: str, values: np.ndarray, sound: np.ndarray) -> None:
        if not sound.all():
            index = int(np.argmin(sound))
            told = f"the {word} is {values[index].tolist()}, but all numbers must be finite"
            self._stop(index, step, f"{told}: mend the environment, or end the trajectory before")

    def _stop(self, index: int, step: int, told: str) -> None:
        task, trajectory = divmod(index, self.count)
        raise ValueError(f"{self.name}, task {task}, trajectory {trajectory}, step {step}: {told}")
