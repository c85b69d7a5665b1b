"""Runs the job that params name, so that one worker serves many tests."""

import importlib


class Chooses:
    def run_job(self, ctx):
        return importlib.import_module(ctx.params["job"]).Job().run_job(ctx)

    def compute(self, params):
        if "raise" in params:
            raise ValueError("no such thing")
        if "nan" in params:
            return {"x": float("nan")}
        return {"given": params}

    def get_ui_fragment(self):
        return "<p>choose</p>"
