"""Latte-Mix: texts as mixtures of the latent distributions of their tokens (Li et al., 2020, arXiv 2010.11351).

A variational auto-encoder learns, without labels, to describe a token vector by `dims` categorical choices. A text is
the mean of its tokens' posteriors: `dims` categorical distributions, compared by their Jensen-Shannon divergence.

    settings    the section [papers.latte_mix]
    model       the fitted encoder in numpy, for building and searching, and its two files
    network     the same auto-encoder in torch: first weights, noise, losses, the fitted encoder as a module
    training    the loop
    pooling     the pooling that `indexer.recipe.paper_methods` names
    divergence  similarity of two texts
    hellinger   square roots of probabilities as a transform

Only `network` and `training` import torch; reading a fitted state does not.
"""
