from litestar import get


class Job:
    def run_job(self, ctx):
        pass

    def get_route_handlers(self):
        @get("/of-my-own")
        async def mine() -> dict[str, str]:
            return {"mine": "yes"}

        return [mine]


def _taking(name, path):
    class Takes(Job):
        def get_route_handlers(self):
            @get(path)
            async def taken() -> None:
                return None

            return [taken]

    Takes.__name__ = name
    return Takes


TakesHealth = _taking("TakesHealth", "/health")
TakesAJob = _taking("TakesAJob", "/jobs/mine")
TakesBelowUi = _taking("TakesBelowUi", "/ui/more")
