"""What whyloop costs, as ratios within one run."""
