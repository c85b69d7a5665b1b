"""The setup graph: what doit runs to bring a host to what the manifests declare."""
