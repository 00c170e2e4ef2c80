"""What the pipeline can say about a log: selectivity, overlap, histograms, traffic, a profile."""
