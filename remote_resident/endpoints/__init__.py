"""Managed endpoints: model services that the host daemon owns."""
