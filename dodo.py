"""The setup graph for doit."""
