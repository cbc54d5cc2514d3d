"""Conversations that live in a store."""
