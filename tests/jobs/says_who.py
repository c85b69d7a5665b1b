class Job:
    def run_job(self, ctx):
        ctx.emit(
            "who",
            {
                "job_id": ctx.job_id,
                "params": ctx.params,
                "identity": ctx.identity,
                "user": ctx.identity.user_id,
                "state_dir": str(ctx.state_dir),
                "made": ctx.state_dir.is_dir(),
            },
        )
