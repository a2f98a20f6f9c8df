"""Latte-Mix: texts as mixtures of the latent distributions of their tokens (Li et al., 2020, arXiv 2010.11351).

A variational auto-encoder learns, without labels, to describe a token vector by `dims` categorical choices. A text is
the mean of its tokens' posteriors: `dims` categorical distributions, compared by their Jensen-Shannon divergence.

    model       the fitted encoder in numpy, for building and searching, and its two files
    divergence  how alike two texts are
    network     the same auto-encoder in torch: first weights, noise, losses, the fitted encoder as a module
    training    the loop

Names are handed on lazily: reading a fitted state loads no torch; `network` and `training` do.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from indexer.papers.latte_mix.model import FILES as FILES
    from indexer.papers.latte_mix.model import LatteMix as LatteMix
    from indexer.papers.latte_mix.model import load_latte_mix as load_latte_mix
    from indexer.papers.latte_mix.model import save_latte_mix as save_latte_mix
    from indexer.papers.latte_mix.training import train_latte_mix as train_latte_mix


_HOME = {
    "FILES": "indexer.papers.latte_mix.model",
    "LatteMix": "indexer.papers.latte_mix.model",
    "load_latte_mix": "indexer.papers.latte_mix.model",
    "save_latte_mix": "indexer.papers.latte_mix.model",
    "train_latte_mix": "indexer.papers.latte_mix.training",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
