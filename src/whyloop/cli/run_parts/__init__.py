"""What `whyloop run` is made of; loaded only when it runs."""
