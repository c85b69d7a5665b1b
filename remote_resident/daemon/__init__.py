"""The host daemon: one process per user that watches jobs and owns endpoints."""
