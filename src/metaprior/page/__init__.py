"""The page of `metaprior demo`: a learned prior meets points that are clicked and characters that are drawn.

The server keeps nothing between two requests: points and drawings live in the browser, so that nobody sees those of others.
"""
