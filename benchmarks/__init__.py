"""Side-by-side measurements of this package and its peers, as ratios. Never a test: machines are noisy."""
