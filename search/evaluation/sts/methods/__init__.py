"""Every method of the papers on the STS tasks, one beside the other: pooling, whitening, SIF, flows, Latte-Mix."""
