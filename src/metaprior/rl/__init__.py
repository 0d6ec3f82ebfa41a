"""Reinforcement learning: rollouts as data. What acts, where, and how its experience becomes a likelihood."""
