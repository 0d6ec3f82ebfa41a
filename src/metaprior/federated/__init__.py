"""Federated learning: tasks stay where they are, and only sums over them travel.

`steps` holds the numerics, `replies` what a server looks at before it believes a reply, `rounds` what becomes of a round,
`requests` and `holders` the client's side, `server` the run folder. None of them knows how messages travel: `flower` does, and
`launch` starts its processes.
"""
