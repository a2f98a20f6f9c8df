"""SIF's token weights, for exports that multiply the rows of a static table by them."""

from indexer.encoders import EncoderSpec
from indexer.pooling.sif import Weights, read_counts, sif_weights


def token_weights(spec: EncoderSpec) -> Weights:
    """Return the weight of each token of a fitted encoder, (vocabulary,). Raises ModelError."""
    return sif_weights(read_counts(spec.fitted_folder("sif")), spec.identity.sif_a or 0.0)
