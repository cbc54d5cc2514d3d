"""The checks of `whyloop.testing.store_conformance`, a file for each part of the contract."""
