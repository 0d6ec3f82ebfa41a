r"""What a trained prior leads to in tasks it has not seen: returns, how far adapted policies lie apart, and where agents go.

Spread is measured on the weights and on what they do. With $d_\tau = \theta_\tau - \Theta$ after all updates: the mean distance
between the θ of two tasks, in lengths of a first step; and $\mathrm{KL}(\pi_{\theta_\tau} \| \pi_{\bar\theta})$ around the policy
with the mean weights, on what each adapted policy observes itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments import displacements
from metaprior import trees
from metaprior.evaluation import TEST_SEED
from metaprior.meta import State, task_keys
from metaprior.rl.likelihood import practice
from metaprior.rl.policy import kl
from metaprior.rl.rollouts import Rollouts, rollouts, total_rewards
from metaprior.rl.setup import RLSetup


class Found(NamedTuple):
    """Of one prior: T tasks, after 0..U updates."""

    returns: Float[Array, "T U"]
    away: Float[Array, "T T"]  # products of the displacements after all updates
    first: Float[Array, " T"]  # lengths of first steps
    first_kl: Float[Array, " T"]  # KL(π_Θ ‖ π_θ1), on what Θ observes
    around: Float[Array, " T"]  # KL to the policy with the mean weights
    log_std: Float[Array, ""]  # mean of the prior's
    shown: Any  # task parameters and trajectories of the first few tasks
    paths: Rollouts  # [D, U, trajectories, H, ...]


def explore(
    setup: RLSetup,
    state: State,
    *,
    updates: int,
    num_tasks: int,
    count: int,
    drawn: int,
    trajectories: int = 2,
    seed: int = TEST_SEED,
) -> Found:
    """Adapt to test tasks, and live in them after every update.

    Tasks, noise and returns are those of `adapted_returns` under the same key.

    Args:
        setup: the method.
        state: as trained.
        updates: U.
        num_tasks: T.
        count: trajectories of each update, and of each mean.
        drawn: tasks whose trajectories are kept.
        trajectories: how many of each.
        seed: which tasks.
    """
    keys = task_keys(jax.random.key(seed), num_tasks)
    environment, policy, family = setup.environment, setup.policy, setup.learner.cell.family

    def one(key):
        key_task, key_adapt, key_judge = jax.random.split(key, 3)
        task = environment.draw(key_task)
        weights = jax.vmap(family.mean)(setup.learner.adapt(key_adapt, state, practice(task, count), updates))
        live = lambda weights: rollouts(key_judge, environment, policy, weights, task, count)
        return task, weights, jax.lax.map(live, weights)

    tasks, weights, lived = jax.vmap(one)(keys)
    start, early, late = (jax.tree.map(lambda leaf, step=step: leaf[:, step], weights) for step in (0, 1, updates))
    vectors = [jax.vmap(trees.vector)(each) for each in (start, early, late)]
    centre = jax.tree.map(lambda leaf: leaf.mean(axis=0), late)
    seen = lambda step: jax.tree.map(lambda leaf: leaf[:, step], lived)
    between = jax.vmap(lambda one, other, lived: _divergence(setup, one, other, lived), in_axes=(0, 0, 0))
    around = jax.vmap(lambda one, lived: _divergence(setup, one, centre, lived))
    away = vectors[2] - vectors[0]
    first = lambda leaf: leaf[:drawn]
    return Found(
        returns=jax.vmap(jax.vmap(total_rewards))(lived).mean(axis=2),
        away=jnp.matmul(away, away.T, precision="highest"),
        first=jnp.sqrt(jnp.square(vectors[1] - vectors[0]).sum(axis=1)),
        first_kl=between(start, early, seen(0)),
        around=around(late, seen(updates)),
        log_std=centre_log_std(start),
        shown=jax.tree.map(first, tasks),
        paths=jax.tree.map(lambda leaf: leaf[:drawn, :, :trajectories], lived),
    )


def centre_log_std(start: Any) -> Float[Array, ""]:
    """Of the prior's policy, averaged over numbers of the action; all tasks start from the same."""
    return start.log_std[0].mean()


def _divergence(setup: RLSetup, one: Any, other: Any, lived: Rollouts) -> Float[Array, ""]:
    """Mean KL of one policy to another, on the observations of some trajectories."""
    observations = lived.observations.reshape(-1, lived.observations.shape[-1])
    counted = lived.mask.reshape(-1)
    values = kl(setup.policy.apply(one, observations), setup.policy.apply(other, observations))
    return (values * counted).sum() / jnp.maximum(counted.sum(), 1)


def spread(found: Found) -> dict[str, Float[np.ndarray, "seeds tasks"]]:
    """The adapted policies in numbers; where a task has its own, for each task."""
    grams, first = np.asarray(found.away, float), np.asarray(found.first, float)
    apart = np.stack([displacements.distances(gram).sum(axis=1) / (len(gram) - 1) for gram in grams])
    return {
        "first step": first,
        "distance between / first step": apart / first.mean(axis=1, keepdims=True),
        "share in common": np.asarray([[displacements.in_common(gram)] for gram in grams]),
        "KL of the first step": np.asarray(found.first_kl, float),
        "KL around the mean": np.asarray(found.around, float),
    }


# --- the body of a cheetah --------------------------------------------------------------------------------------------

HEIGHT, SPEED = 0, 8  # of the body, among the numbers observed


def outlines(observations: Float[np.ndarray, "H O"], steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """Where the limbs are at some steps: capsules as pairs of points (x, z) with their radii, drawn without a renderer.

    A cheetah does not observe how far it has come; that is summed up from its speed.
    """
    from metaprior.rl import cheetah
    from metaprior.rl.extra import imported

    mujoco = imported("mujoco", by="half-cheetah")
    model = cheetah.load_model()
    data = mujoco.MjData(model)
    travelled = np.concatenate([[0.0], np.cumsum(observations[:-1, SPEED])]) * cheetah.seconds_per_step(model)
    limbs = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_CAPSULE]
    frames = []
    for step in steps:
        data.qpos[:] = np.concatenate([[travelled[step]], observations[step, :SPEED]])
        mujoco.mj_kinematics(model, data)
        axes = data.geom_xmat[limbs].reshape(-1, 3, 3)[:, :, 2] * model.geom_size[limbs, 1][:, None]
        ends = np.stack([data.geom_xpos[limbs] - axes, data.geom_xpos[limbs] + axes], axis=1)[:, :, [0, 2]]
        frames.append({"step": step, "ends": np.round(ends, 3), "radii": np.round(model.geom_size[limbs, 0], 3)})
    return frames
