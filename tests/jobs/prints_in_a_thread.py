import asyncio


class Job:
    async def run_job(self, ctx):
        await asyncio.to_thread(print, "from a thread")
