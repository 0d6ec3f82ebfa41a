"""Federated learning: tasks stay where they are, and only sums over them travel.

`steps` holds the numerics, `replies` what a server looks at before it believes a reply, `rounds` what becomes of a round. None of
them knows how messages travel.
"""
