import asyncio


class Job:
    async def run_job(self, ctx):
        await asyncio.sleep(0)
        ctx.log("awaited")
