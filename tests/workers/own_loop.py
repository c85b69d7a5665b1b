"""Want the loop for itself."""

import worker_base


def answer(request):
    return {"mine": request.get("x")}


config = worker_base.config()
worker_base.serve(
    slug=config.slug,
    socket_path=config.socket_path,
    on_predict=answer,
    ready=lambda: {"own": True},
)
